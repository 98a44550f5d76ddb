// Transactions of kafkajs: `node main.js transactions BOOTSTRAP TOPIC GROUP`. TOPIC-in has three records, which a group reads.
const assert = require('node:assert')

const WRITTEN = ['committed-0', 'committed-1', 'committed-2', 'with-offsets', 'heir']

module.exports = async function transactions(kafka, check, read, topic, consumerGroupId) {
  const connected = async () => {
    const producer = kafka.producer({ transactionalId: `${topic}-id`, idempotent: true, maxInFlightRequests: 1, retry: { retries: 5 } })
    await producer.connect()
    return producer
  }
  const begin = async (producer, ...values) => {
    const transaction = await producer.transaction()
    for (const value of values) for (const partition of [0, 1]) await transaction.send({ topic, messages: [{ partition, value }] })
    return transaction
  }
  await check('commit and abort', async () => {
    const producer = await connected()
    await (await begin(producer, 'committed-0', 'committed-1', 'committed-2')).commit()
    await (await begin(producer, 'aborted')).abort()
    await producer.disconnect()
  })
  await check('offsets in a transaction', async () => {
    const producer = await connected()
    const at = offset => ({ consumerGroupId, topics: [{ topic: `${topic}-in`, partitions: [{ partition: 0, offset }] }] })
    const committed = await begin(producer, 'with-offsets')
    await committed.sendOffsets(at('3'))
    await committed.commit()
    const aborted = await begin(producer, 'aborted')
    await aborted.sendOffsets(at('5'))
    await aborted.abort()
    await producer.disconnect()
  })
  await check('fencing', async () => {
    // Each transaction asks for an epoch of its own: one that begins fences those before it.
    const [zombie, heir] = [await connected(), await connected()]
    const open = await begin(zombie, 'zombie')
    const next = await begin(heir, 'heir')
    const error = await open.commit().catch(error => error)
    assert(/PRODUCER_FENCED|INVALID_PRODUCER_EPOCH/.test(error?.type), `the zombie committed: ${error}`)
    await next.commit()
    await Promise.all([zombie, heir].map(one => one.disconnect()))
  })
  await check('read committed', async () => {
    const count = 2 * WRITTEN.length
    const got = (await read(topic, found => found.length >= count)).map(message => String(message.value))
    assert.deepEqual(got.sort(), [...WRITTEN, ...WRITTEN].sort())
  })
}
