// @platformatic/kafka against a broker: `node main.js features BOOTSTRAP REPLICAS PREFIX [consumer]` or
// `node main.js load BOOTSTRAP TOPIC [consumer]`; `consumer` is the newer protocol of groups.
import assert from 'node:assert'
import { setTimeout as sleep } from 'node:timers/promises'
import { Admin, Consumer, Producer, ConfigResourceTypes } from '@platformatic/kafka'

const PATIENCE_MS = 60_000
const BASE_MS = 1_700_000_000_000n
const [mode, bootstrap, ...rest] = process.argv.slice(2)
const groupProtocol = rest.at(-1) === 'consumer' ? 'consumer' : 'classic'
const common = { clientId: 'foreign', bootstrapBrokers: bootstrap.split(','), retries: 100, retryDelay: 200, timeout: 10_000 }
const classic = groupProtocol === 'classic' ? { sessionTimeout: 10_000, heartbeatInterval: 300 } : {}

async function check(name, body) {
  const start = Date.now()
  try {
    await body()
    console.log(`ok ${name} (${Date.now() - start} ms)`)
  } catch (error) {
    process.exitCode = 1
    const causes = error.errors?.map(e => e.message).join('; ') ?? ''
    console.log(`failed ${name}: ${`${error.message ?? error} ${causes} ${error.stack}`.replaceAll('\n', ' ').slice(0, 600)}`)
  }
}

async function until(what, look) {
  for (const end = Date.now() + PATIENCE_MS; !(await look()); await sleep(50)) assert(Date.now() < end, `not in time: ${what}`)
}

function records() {
  const noise = Buffer.alloc(900_000)
  for (let i = 0, x = 7; i < noise.length; i++) {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0
    noise[i] = x >>> 24
  }
  const text = value => Buffer.from(value)
  const found = [
    { value: text('plain') },
    { key: text('tombstone') },
    { key: text('ключ'), value: text('grüße'), headers: new Map([[text('名'), Buffer.from([0, 255])]]) },
    { value: text('same '.repeat(20_000)) },
  ]
  for (let i = 0; i < 200; i++) found.push({ key: text(`k${i % 7}`), value: text(`v${i}`) })
  found.push({ value: noise })
  return found.map((r, i) => ({ partition: 0, timestamp: BASE_MS + BigInt(i), ...r }))
}

async function send(topic, options = {}) {
  const producer = new Producer({ ...common, ...options })
  await producer.send({ messages: records().map(r => ({ topic, ...r })) })
  await producer.close()
}

async function read(topic, enough, { offset = 0n } = {}) {
  const consumer = new Consumer({ ...common, groupId: `${topic}-${Math.random()}`, groupProtocol, ...classic, maxWaitTime: 200 })
  const stream = await consumer.consume({ topics: [topic], mode: 'manual', offsets: [{ topic, partition: 0, offset }], autocommit: false })
  const got = []
  stream.on('data', message => got.push(message))
  stream.on('error', () => {})
  try {
    await until(`${got.length} records are not enough`, () => enough(got))
  } finally {
    await consumer.close(true)
  }
  return got
}

const empty = value => (value?.length ? value : null)

function compare(got) {
  const wanted = records()
  assert.equal(got.length, wanted.length)
  for (const [i, w] of wanted.entries()) {
    const told = { key: empty(got[i].key), value: empty(got[i].value), headers: [...got[i].headers], timestamp: got[i].timestamp }
    assert.deepEqual(told, { key: empty(w.key), value: empty(w.value), headers: [...(w.headers ?? [])], timestamp: w.timestamp }, `record ${i} differs`)
  }
}

async function features(replicas, prefix) {
  const admin = new Admin(common)
  const once = new Admin({ ...common, retries: 0 })
  const main = `${prefix}-main`
  const create = async (name, partitions = 1) => {
    const topic = `${prefix}-${name}`
    await admin.createTopics({ topics: [topic], partitions, replicas, configs: [{ name: 'retention.ms', value: '-1' }] })
    await until('created everywhere', async () => (await admin.listTopics()).includes(topic))
    return topic
  }
  await check('topics', async () => {
    await create('main', 3)
    await assert.rejects(once.createTopics({ topics: [main], partitions: 1, replicas: 1 }))
    const metadata = await admin.metadata({ topics: [main], forceUpdate: true })
    assert.equal(metadata.brokers.size, replicas)
    assert.deepEqual(metadata.topics.get(main).partitions.map(p => p.isr.length), [replicas, replicas, replicas])
    await admin.createPartitions({ topics: [{ name: main, count: 5, assignments: null }] })
    await until('five', async () => (await admin.metadata({ topics: [main], forceUpdate: true })).topics.get(main).partitionsCount === 5)
  })
  await check('configs', async () => {
    const resource = { resourceType: ConfigResourceTypes.TOPIC, resourceName: main }
    await admin.incrementalAlterConfigs({ resources: [{ ...resource, configs: [{ name: 'max.message.bytes', configOperation: 0, value: '2000000' }] }] })
    await until('the new value', async () => {
      const [{ configs }] = await admin.describeConfigs({ resources: [{ ...resource, configurationKeys: ['max.message.bytes'] }] })
      return configs[0].value === '2000000'
    })
    await admin.describeLogDirs({ topics: [{ name: main, partitions: [0] }] })
  })
  for (const compression of ['none', 'gzip', 'snappy', 'lz4', 'zstd'])
    await check(`records ${compression}`, async () => {
      const topic = await create(compression)
      await send(topic, { compression, idempotent: true })
      compare(await read(topic, got => got.length >= records().length))
    })
  for (const acks of [0, 1])
    await check(`acks ${acks}`, async () => {
      const topic = await create(`acks-${acks}`)
      await send(topic, { acks })
      compare(await read(topic, got => got.length >= records().length))
    })
  await check('offsets', async () => {
    const topic = `${prefix}-none`
    const at = async timestamp =>
      (await admin.listOffsets({ topics: [{ name: topic, partitions: [{ partitionIndex: 0, timestamp }] }] }))[0].partitions[0].offset
    assert.deepEqual([await at(-2n), await at(-1n), await at(BASE_MS + 100n), await at(-3n)], [0n, BigInt(records().length), 100n, BigInt(records().length - 1)])
    assert.equal((await read(topic, got => got.length > 0, { offset: 150n }))[0].offset, 150n)
  })
  await check('delete records', async () => {
    const topic = `${prefix}-none`
    const [{ partitions }] = await admin.deleteRecords({ topics: [{ name: topic, partitions: [{ partition: 0, offset: 50n }] }] })
    assert.equal(partitions[0].lowWatermark, 50n)
    assert.equal((await read(topic, got => got.length > 0, { offset: 50n }))[0].offset, 50n)
  })
  await check('group', () => create('group', 4).then(topic => group(admin, once, topic)))
  await check('delete topic', async () => {
    await admin.deleteTopics({ topics: [main] })
    await until('gone', async () => !(await admin.listTopics()).includes(main))
  })
  await Promise.all([admin.close(), once.close()])
}

async function join(topic, seen) {
  const consumer = new Consumer({ ...common, groupId: topic, groupProtocol, ...classic, maxWaitTime: 200 })
  const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: false })
  stream.on('error', () => {})
  // A commit fails while the group changes, with the epoch that its message came with: again, with what is read by then.
  const positions = new Map()
  stream.on('data', ({ partition, offset, leaderEpoch, value }) => {
    seen.add(String(value))
    positions.set(partition, { topic, partition, offset: offset + 1n, leaderEpoch })
  })
  const commit = async () => {
    const offsets = [...positions.values()]
    if (offsets.length === 0) return
    await consumer.commit({ offsets })
    for (const one of offsets) if (positions.get(one.partition) === one) positions.delete(one.partition)
  }
  const timer = setInterval(() => commit().catch(() => {}), 100)
  stream.on('close', () => clearInterval(timer))
  return consumer
}

async function group(admin, once, topic) {
  const producer = new Producer(common)
  const messages = Array.from({ length: 100 }, (_, i) => ({ topic, key: Buffer.from(`${i}`), value: Buffer.from(`${i}`) }))
  await producer.send({ messages })
  await producer.close()
  const seen = new Set()
  const held = consumer => (consumer.assignments ?? []).reduce((sum, a) => sum + a.partitions.length, 0)
  const first = await join(topic, seen)
  await until('all read', () => seen.size === 100)
  const offsets = async () => {
    const [{ topics }] = await admin.listConsumerGroupOffsets({ groups: [topic] })
    return (topics[0]?.partitions ?? []).reduce((sum, p) => sum + Number(p.committedOffset), 0)
  }
  await until('all committed', async () => (await offsets()) === 100)
  const second = await join(topic, seen)
  await until('two each', () => held(first) === 2 && held(second) === 2)
  if (groupProtocol === 'classic') {
    const told = await admin.describeGroups({ groups: [topic] })
    assert.deepEqual([told.get(topic).state, told.get(topic).members.size], ['Stable', 2])
  }
  await second.close(true)
  await until('one with all', () => held(first) === 4)
  await assert.rejects(once.deleteGroups({ groups: [topic] }))
  await first.close(true)
  await admin.alterConsumerGroupOffsets({ groupId: topic, topics: [{ name: topic, partitionOffsets: [0, 1, 2, 3].map(partition => ({ partition, offset: 0n })) }] })
  assert.equal(await offsets(), 0)
  await admin.deleteConsumerGroupOffsets({ groupId: topic, topics: [{ name: topic, partitionIndexes: [1] }] })
  assert((await admin.listGroups({ types: ['classic', 'consumer'] })).has(topic))
  await admin.deleteGroups({ groups: [topic] })
  assert(!(await admin.listGroups({ types: ['classic', 'consumer'] })).has(topic))
}

async function load(topic) {
  const producer = new Producer({ ...common, idempotent: true })
  const seen = new Set()
  const consumers = [await join(topic, seen), await join(topic, seen)]
  let ended = false
  process.stdin.once('data', () => (ended = true))
  let sent = 0
  for (let said = false; !ended; await sleep(5)) {
    const partition = (sent / 10) % 3
    await producer.send({ messages: Array.from({ length: 10 }, () => ({ topic, partition, value: Buffer.from(String(sent++)) })) })
    if (!said && sent >= 1000) said = !console.log('running')
  }
  await check('load', async () => {
    console.log(`acknowledged ${sent}`)
    await until('all read', () => seen.size === sent)
  })
  await Promise.all(consumers.map(consumer => consumer.close(true)))
}

(mode === 'features' ? features(Number(rest[0]), rest[1]) : load(rest[0])).then(
  () => process.exit(),
  error => {
    console.log(`failed ${mode}: ${error.stack}`)
    process.exit(1)
  },
)
