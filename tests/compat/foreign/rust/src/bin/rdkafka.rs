//! rust-rdkafka against a broker: `rdkafka features BOOTSTRAP REPLICAS PREFIX`, `rdkafka load BOOTSTRAP TOPIC`
//! or `rdkafka transactions BOOTSTRAP TOPIC GROUP`.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foreign::{BASE_MS, Outcome, PATIENCE, Record, check, compare, done, ended, records, same, until};
use futures::future::try_join_all;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, StreamConsumer};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, FutureProducer, FutureRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

const SHORT: Duration = Duration::from_millis(200);

fn config(bootstrap: &str, more: &[(&str, &str)]) -> ClientConfig {
    let mut found = ClientConfig::new();
    found.set("bootstrap.servers", bootstrap);
    for (name, value) in more {
        found.set(*name, *value);
    }
    found
}

fn ours(message: &impl Message) -> Record {
    let headers = message.headers().map(|all| all.iter().map(|h| (h.key.to_string(), h.value.unwrap_or_default().to_vec())).collect());
    let timestamp = message.timestamp().to_millis().unwrap_or(-1);
    Record { key: message.key().map(Into::into), value: message.payload().map(Into::into), headers: headers.unwrap_or_default(), timestamp }
}

async fn send(bootstrap: &str, topic: &str, more: &[(&str, &str)]) -> Outcome {
    let producer: FutureProducer = config(bootstrap, more).set("linger.ms", "50").create()?;
    let all = records();
    let sent = all.iter().map(|record| async {
        let mut theirs: FutureRecord<'_, [u8], [u8]> = FutureRecord::to(topic).partition(0).timestamp(record.timestamp);
        theirs.key = record.key.as_deref();
        theirs.payload = record.value.as_deref();
        if !record.headers.is_empty() {
            let add = |all: OwnedHeaders, (key, value): &(String, Vec<u8>)| all.insert(Header { key, value: Some(value) });
            theirs.headers = Some(record.headers.iter().fold(OwnedHeaders::new(), add));
        }
        producer.send(theirs, PATIENCE).await.map_err(|(why, _)| why)
    });
    try_join_all(sent).await?;
    Ok(producer.flush(PATIENCE)?)
}

/// `count` records of partition 0, from an offset on, and the offset of the first.
fn read(bootstrap: &str, topic: &str, offset: i64, count: usize) -> Outcome<(i64, Vec<Record>)> {
    let consumer: BaseConsumer = config(bootstrap, &[("group.id", "unused"), ("auto.offset.reset", "earliest")]).create()?;
    let mut wanted = TopicPartitionList::new();
    wanted.add_partition_offset(topic, 0, Offset::Offset(offset))?;
    consumer.assign(&wanted)?;
    let (mut found, mut first, end) = (vec![], -1, Instant::now() + PATIENCE);
    while found.len() < count && Instant::now() < end {
        if let Some(message) = consumer.poll(SHORT) {
            let message = message?;
            first = if found.is_empty() { message.offset() } else { first };
            found.push(ours(&message));
        }
    }
    Ok((first, found))
}

struct Admin(AdminClient<DefaultClientContext>, BaseConsumer, AdminOptions);

impl Admin {
    async fn create(&self, topic: &str, partitions: i32, replicas: i32) -> Outcome {
        let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(replicas)).set("retention.ms", "-1");
        for one in self.0.create_topics([&new], &self.2).await? {
            one.map_err(|(name, code)| format!("{name}: {code}"))?;
        }
        until("created everywhere", || async { Ok(self.partitions(topic)? == partitions as usize) }).await
    }

    fn partitions(&self, topic: &str) -> Outcome<usize> {
        Ok(self.1.fetch_metadata(Some(topic), PATIENCE)?.topics()[0].partitions().len())
    }

    /// As the broker lists it: its state and its members, or nothing.
    fn group(&self, name: &str) -> Outcome<Option<(String, usize)>> {
        let list = self.1.fetch_group_list(Some(name), PATIENCE)?;
        let found = list.groups().iter().find(|g| g.name() == name && g.state() != "Dead");
        Ok(found.map(|g| (g.state().to_string(), g.members().len())))
    }
}

async fn features(bootstrap: &str, replicas: i32, prefix: &str) -> Outcome {
    // Metadata of a topic that is gone must not make it again.
    let asks = config(bootstrap, &[("group.id", "asks"), ("allow.auto.create.topics", "false")]);
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    let admin = Admin(config(bootstrap, &[]).create()?, asks.create()?, options);
    let topic = |name: &str| format!("{prefix}-{name}");
    let main = topic("main");
    check("topics", async {
        admin.create(&main, 3, replicas).await?;
        let again = admin.0.create_topics([&NewTopic::new(&main, 1, TopicReplication::Fixed(1))], &admin.2).await?;
        same(again[0].is_err(), true)?;
        let told = admin.1.fetch_metadata(None, PATIENCE)?;
        same(told.brokers().len() as i32, replicas)?;
        let mine = told.topics().iter().find(|t| t.name() == main).ok_or("not listed")?;
        same(mine.partitions().iter().map(|p| p.isr().len() as i32).collect(), vec![replicas; 3])?;
        admin.0.create_partitions([&NewPartitions::new(&main, 5)], &admin.2).await?[0].as_ref().map_err(|why| format!("{why:?}"))?;
        until("five", || async { Ok(admin.partitions(&main)? == 5) }).await
    })
    .await;
    check("configs", async {
        let resource = ResourceSpecifier::Topic(&main);
        let change = AlterConfig::new(resource).set("max.message.bytes", "2000000");
        admin.0.alter_configs([&change], &admin.2).await?.remove(0).map_err(|why| format!("{why:?}"))?;
        until("the new value", || async {
            let told = admin.0.describe_configs([&resource], &admin.2).await?.remove(0)?;
            Ok(told.get("max.message.bytes").and_then(|e| e.value.clone()) == Some("2000000".into()))
        })
        .await?;
        let told = admin.0.describe_configs([&ResourceSpecifier::Broker(1)], &admin.2).await?.remove(0)?;
        same(told.get("log.retention.ms").is_some_and(|e| !e.is_read_only), true)
    })
    .await;
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        check(&format!("records {codec}"), async {
            admin.create(&topic(codec), 1, replicas).await?;
            send(bootstrap, &topic(codec), &[("compression.type", codec), ("enable.idempotence", "true")]).await?;
            compare(&read(bootstrap, &topic(codec), 0, records().len())?.1)
        })
        .await;
    }
    for acks in ["0", "1"] {
        check(&format!("acks {acks}"), async {
            admin.create(&topic(&format!("acks-{acks}")), 1, replicas).await?;
            send(bootstrap, &topic(&format!("acks-{acks}")), &[("acks", acks), ("max.in.flight", "1")]).await?;
            compare(&read(bootstrap, &topic(&format!("acks-{acks}")), 0, records().len())?.1)
        })
        .await;
    }
    check("offsets", async {
        let name = topic("none");
        same(admin.1.fetch_watermarks(&name, 0, PATIENCE)?, (0, records().len() as i64))?;
        let mut asked = TopicPartitionList::new();
        asked.add_partition_offset(&name, 0, Offset::Offset(BASE_MS + 100))?;
        let told = admin.1.offsets_for_times(asked, PATIENCE)?;
        same(told.elements()[0].offset(), Offset::Offset(100))?;
        same(read(bootstrap, &name, 150, 1)?.0, 150)
    })
    .await;
    check("delete records", async {
        let mut before = TopicPartitionList::new();
        before.add_partition_offset(&topic("none"), 0, Offset::Offset(50))?;
        let told = admin.0.delete_records(&before, &admin.2).await?;
        same(told.elements()[0].offset(), Offset::Offset(50))?;
        same(read(bootstrap, &topic("none"), 0, 1)?.0, 50)
    })
    .await;
    for (kind, more) in [
        ("cooperative", ("partition.assignment.strategy", "cooperative-sticky")),
        ("range", ("partition.assignment.strategy", "range")),
        ("consumer-protocol", ("group.protocol", "consumer")),
    ] {
        check(&format!("group {kind}"), group(bootstrap, &admin, &topic(kind), replicas, more)).await;
    }
    check("delete topic", async {
        admin.0.delete_topics(&[&main], &admin.2).await?.remove(0).map_err(|why| format!("{why:?}"))?;
        until("gone", || async { Ok(admin.1.fetch_metadata(None, PATIENCE)?.topics().iter().all(|t| t.name() != main)) }).await
    })
    .await;
    Ok(())
}

struct Member {
    consumer: Arc<StreamConsumer>,
    task: tokio::task::JoinHandle<()>,
}

fn join(bootstrap: &str, topic: &str, more: &[(&str, &str)], seen: &Arc<Mutex<HashSet<String>>>) -> Outcome<Member> {
    let name = format!("{topic}-group");
    let given = [("group.id", name.as_str()), ("auto.offset.reset", "earliest"), ("enable.auto.commit", "false")];
    let consumer: Arc<StreamConsumer> = Arc::new(config(bootstrap, &[&given, more].concat()).create()?);
    consumer.subscribe(&[topic])?;
    let (mine, seen) = (consumer.clone(), seen.clone());
    let task = tokio::spawn(async move {
        loop {
            let Ok(message) = mine.recv().await else { continue };
            seen.lock().unwrap().insert(String::from_utf8_lossy(message.payload().unwrap_or_default()).into());
            let _ = mine.commit_message(&message, CommitMode::Async);
        }
    });
    Ok(Member { consumer, task })
}

async fn group(bootstrap: &str, admin: &Admin, topic: &str, replicas: i32, more: (&str, &str)) -> Outcome {
    admin.create(topic, 4, replicas).await?;
    let producer: FutureProducer = config(bootstrap, &[]).create()?;
    for i in 0..100 {
        let text = i.to_string();
        producer.send(FutureRecord::to(topic).key(&text).payload(&text), PATIENCE).await.map_err(|(why, _)| why)?;
    }
    let seen = Arc::default();
    let first = join(bootstrap, topic, &[more], &seen)?;
    until("all read", || async { Ok(seen.lock().unwrap().len() == 100) }).await?;
    let second = join(bootstrap, topic, &[more], &seen)?;
    let held = |member: &Member| member.consumer.assignment().map(|found| found.count());
    until("two each", || async { Ok((held(&first)?, held(&second)?) == (2, 2)) }).await?;
    let name = format!("{topic}-group");
    if more.0 != "group.protocol" {
        // librdkafka's list has classic groups only.
        same(admin.group(&name)?, Some(("Stable".into(), 2)))?;
    }
    second.task.abort();
    let _ = second.task.await;
    drop(second.consumer);
    until("one with all", || async { Ok(held(&first)? == 4) }).await?;
    let mut asked = TopicPartitionList::new();
    asked.add_partition_range(topic, 0, 3);
    let told = || -> Outcome<i64> {
        let found = first.consumer.committed_offsets(asked.clone(), PATIENCE)?;
        Ok(found.elements().iter().filter_map(|e| e.offset().to_raw()).filter(|raw| *raw > 0).sum())
    };
    until("all committed", || async { Ok(told()? == 100) }).await?;
    same(admin.0.delete_groups(&[&name], &admin.2).await?[0].is_err(), true)?;
    first.task.abort();
    let _ = first.task.await;
    drop(first.consumer);
    until("deleted", || async { Ok(admin.0.delete_groups(&[&name], &admin.2).await?[0].is_ok()) }).await?;
    same(admin.group(&name)?, None)
}

async fn load(bootstrap: &str, topic: &str) -> Outcome {
    let seen = Arc::default();
    let _members = [join(bootstrap, topic, &[], &seen)?, join(bootstrap, topic, &[], &seen)?];
    let producer: FutureProducer = config(bootstrap, &[("enable.idempotence", "true"), ("linger.ms", "1")]).create()?;
    let ended = ended();
    let (mut sent, mut waiting) = (0, vec![]);
    while !ended.load(Ordering::Relaxed) {
        for _ in 0..10 {
            let text = sent.to_string();
            waiting.push(producer.send_result(FutureRecord::to(topic).key(&text).payload(&text)).map_err(|(why, _)| why)?);
            sent += 1;
        }
        if sent == 1000 {
            println!("running");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    check("load", async {
        for one in waiting {
            one.await?.map_err(|(why, _)| why)?;
        }
        println!("acknowledged {sent}");
        until("all read", || async { Ok(seen.lock().unwrap().len() == sent) }).await
    })
    .await;
    Ok(())
}

const WRITTEN: [&str; 5] = ["committed-0", "committed-1", "committed-2", "heir", "with-offsets"];

fn transactional(bootstrap: &str, topic: &str) -> Outcome<BaseProducer> {
    let producer: BaseProducer = config(bootstrap, &[("transactional.id", &format!("{topic}-id"))]).create()?;
    producer.init_transactions(PATIENCE)?;
    Ok(producer)
}

fn begin(producer: &BaseProducer, topic: &str, values: &[&str]) -> Outcome {
    producer.begin_transaction()?;
    for value in values {
        for partition in 0..2 {
            producer.send(BaseRecord::<(), str>::to(topic).partition(partition).payload(value)).map_err(|(why, _)| why)?;
        }
    }
    Ok(producer.flush(PATIENCE)?)
}

/// `topic`-in has three records, which a group reads.
async fn transactions(bootstrap: &str, topic: &str, group: &str) -> Outcome {
    check("commit and abort", async {
        let producer = transactional(bootstrap, topic)?;
        begin(&producer, topic, &["committed-0", "committed-1", "committed-2"])?;
        producer.commit_transaction(PATIENCE)?;
        begin(&producer, topic, &["aborted"])?;
        Ok(producer.abort_transaction(PATIENCE)?)
    })
    .await;
    check("offsets in a transaction", async {
        let producer = transactional(bootstrap, topic)?;
        let consumer: BaseConsumer = config(bootstrap, &[("group.id", group)]).create()?;
        let member = consumer.group_metadata().ok_or("no metadata of the group")?;
        for (value, offset) in [("with-offsets", 3), ("aborted", 5)] {
            begin(&producer, topic, &[value])?;
            let mut offsets = TopicPartitionList::new();
            offsets.add_partition_offset(&format!("{topic}-in"), 0, Offset::Offset(offset))?;
            producer.send_offsets_to_transaction(&offsets, &member, PATIENCE)?;
            if value == "aborted" { producer.abort_transaction(PATIENCE)? } else { producer.commit_transaction(PATIENCE)? }
        }
        Ok(())
    })
    .await;
    check("fencing", async {
        let zombie = transactional(bootstrap, topic)?;
        begin(&zombie, topic, &["zombie"])?;
        let heir = transactional(bootstrap, topic)?;
        begin(&heir, topic, &["heir"])?;
        match zombie.commit_transaction(PATIENCE) {
            Err(KafkaError::Transaction(why)) => same((why.code(), why.is_fatal()), (RDKafkaErrorCode::Fenced, true))?,
            other => return Err(format!("the zombie: {other:?}").into()),
        }
        Ok(heir.commit_transaction(PATIENCE)?)
    })
    .await;
    check("read committed", async {
        let consumer: BaseConsumer = config(bootstrap, &[("group.id", "unused"), ("isolation.level", "read_committed")]).create()?;
        let mut wanted = TopicPartitionList::new();
        for partition in 0..2 {
            wanted.add_partition_offset(topic, partition, Offset::Beginning)?;
        }
        consumer.assign(&wanted)?;
        let (mut found, end) = (vec![], Instant::now() + PATIENCE);
        while found.len() < 2 * WRITTEN.len() && Instant::now() < end {
            if let Some(message) = consumer.poll(SHORT) {
                found.push(String::from_utf8(message?.payload().unwrap_or_default().to_vec())?);
            }
        }
        found.sort();
        same(found, WRITTEN.iter().flat_map(|value| [value.to_string(), value.to_string()]).collect())
    })
    .await;
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args[0].as_str() {
        "features" => features(&args[1], args[2].parse()?, &args[3]).await?,
        "transactions" => transactions(&args[1], &args[2], &args[3]).await?,
        _ => load(&args[1], &args[2]).await?,
    }
    done()
}
