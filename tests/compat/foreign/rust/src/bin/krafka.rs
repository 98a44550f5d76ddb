//! krafka against a broker: `krafka features BOOTSTRAP REPLICAS PREFIX [consumer]` or `krafka load BOOTSTRAP TOPIC [consumer]`;
//! `consumer` is the newer protocol of groups.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foreign::{BASE_MS, Outcome, PATIENCE, Record, check, compare, done, ended, records, same, until};
use krafka::{Compression, Kafka};
use krafka::admin::{AdminClient, ConfigOp, ConfigResource, NewTopic, OffsetSpec, TopicPartition};
use krafka::consumer::{AutoOffsetReset, Consumer, ConsumerRecord, GroupProtocol};
use krafka::error::KrafkaError;
use krafka::producer::Acks;


const SHORT: Duration = Duration::from_millis(200);

/// The values of a call that answers each thing by itself.
fn all<K: Eq + Hash, V>(found: HashMap<K, Result<V, KrafkaError>>) -> Outcome<HashMap<K, V>> {
    Ok(found.into_iter().map(|(key, value)| value.map(|v| (key, v))).collect::<Result<_, _>>()?)
}

fn at(topic: &str, partition: i32) -> TopicPartition {
    TopicPartition::new(topic, partition)
}

fn ours(record: ConsumerRecord) -> Record {
    let headers = record.headers.iter().map(|(k, v)| (k.to_string(), v.clone().unwrap_or_default().to_vec())).collect();
    Record { key: record.key.map(|k| k.to_vec()), value: record.value.map(|v| v.to_vec()), headers, timestamp: record.timestamp }
}

async fn send(kafka: &Kafka, topic: &str, codec: Compression, acks: Acks) -> Outcome {
    let idempotent = acks == Acks::All;
    let producer = kafka.producer().compression(codec).acks(acks).idempotent(idempotent).linger(SHORT).build().await?;
    let mut waiting = vec![];
    for record in records() {
        let mut theirs = krafka::Record::new(topic, "").without_value().partition(0).timestamp(record.timestamp);
        theirs.key = record.key.map(Into::into);
        theirs.value = record.value.map(Into::into);
        for (name, value) in record.headers {
            theirs = theirs.header(name, value);
        }
        waiting.push(producer.enqueue(theirs).await?);
    }
    for one in waiting {
        let _ = one.await?;
    }
    Ok(producer.close().await?)
}

/// `count` records of partition 0, from an offset on.
async fn read(kafka: &Kafka, topic: &str, offset: i64, count: usize) -> Outcome<Vec<ConsumerRecord>> {
    let consumer = kafka.consumer_without_group().auto_offset_reset(AutoOffsetReset::Earliest).build().await?;
    consumer.assign(topic, vec![0]).await?;
    consumer.seek(topic, 0, offset).await?;
    let (mut found, end) = (vec![], Instant::now() + PATIENCE);
    while found.len() < count && Instant::now() < end {
        found.extend(consumer.poll(SHORT).await?);
    }
    consumer.close().await?;
    Ok(found)
}

async fn create(admin: &AdminClient, topic: &str, partitions: i32, replicas: i32) -> Outcome {
    let new = NewTopic::new(topic, partitions, replicas as i16)?.with_config("retention.ms", "-1");
    all(admin.create_topics([new], Default::default()).await?)?;
    until("created everywhere", || async { Ok(admin.describe_topics([topic], Default::default()).await?[topic].is_ok()) }).await
}

async fn features(bootstrap: &str, kafka: Kafka, replicas: i32, prefix: &str, protocol: GroupProtocol) {
    let admin = kafka.admin();
    let topic = |name: &str| format!("{prefix}-{name}");
    let main = topic("main");
    check("topics", async {
        create(&admin, &main, 3, replicas).await?;
        let again = admin.create_topics([NewTopic::new(&main, 1, 1)?], Default::default()).await?;
        same(again[&main].is_err(), true)?;
        let told = all(admin.describe_topics([&main], Default::default()).await?)?;
        same(told[&main].partitions.iter().map(|p| p.isr.len() as i32).collect(), vec![replicas; 3])?;
        same(admin.list_topics(Default::default()).await?.contains(&main), true)
    })
    .await;
    check("cluster", async {
        let told = admin.describe_cluster(Default::default()).await?;
        same((told.brokers.len() as i32, told.cluster_id.len()), (replicas, 22))?;
        let quorum = admin.describe_metadata_quorum(Default::default()).await?;
        same(format!("{quorum:?}").contains("leader"), true)?;
        let features = admin.describe_features(Default::default()).await?;
        same(format!("{features:?}").contains("metadata.version"), true)?;
        let folders = all(admin.describe_log_dirs(1..=replicas, Default::default()).await?)?;
        same(folders.len() as i32, replicas)
    })
    .await;
    check("configs", async {
        let resource = ConfigResource::topic(&main);
        let change = (resource.clone(), vec![ConfigOp::set("max.message.bytes", "2000000"), ConfigOp::delete("retention.ms")]);
        all(admin.incremental_alter_configs([change], Default::default()).await?)?;
        until("the new values", || async {
            let told = all(admin.describe_configs([resource.clone()], Default::default()).await?)?;
            let value = |name: &str| told[&resource].iter().find(|e| e.name == name).and_then(|e| e.value.clone());
            Ok(value("max.message.bytes") == Some("2000000".into()) && value("retention.ms") == Some("-1".into()))
        })
        .await?;
        let broker = ConfigResource::broker(1);
        let told = all(admin.describe_configs([broker.clone()], Default::default()).await?)?;
        same(told[&broker].iter().any(|e| e.name == "log.retention.ms" && !e.read_only), true)
    })
    .await;
    check("partitions", async {
        all(admin.create_partitions([(&main, 5)], Default::default()).await?)?;
        until("five", || async {
            Ok(all(admin.describe_topics([&main], Default::default()).await?)?[&main].partitions.len() == 5)
        })
        .await
    })
    .await;
    for codec in [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd] {
        check(&format!("records {codec:?}"), async {
            let name = topic(&format!("{codec:?}"));
            create(&admin, &name, 1, replicas).await?;
            send(&kafka, &name, codec, Acks::All).await?;
            let got = read(&kafka, &name, 0, records().len()).await?;
            compare(&got.into_iter().map(ours).collect::<Vec<_>>())
        })
        .await;
    }
    for acks in [Acks::None, Acks::Leader] {
        check(&format!("acks {acks:?}"), async {
            let name = topic(&format!("acks-{acks:?}"));
            create(&admin, &name, 1, replicas).await?;
            send(&kafka, &name, Compression::None, acks).await?;
            let got = read(&kafka, &name, 0, records().len()).await?;
            compare(&got.into_iter().map(ours).collect::<Vec<_>>())
        })
        .await;
    }
    check("offsets", async {
        let name = topic("None");
        let count = records().len() as i64;
        let noted = [
            (OffsetSpec::Earliest, 0), (OffsetSpec::Latest, count), (OffsetSpec::Timestamp(BASE_MS + 100), 100),
            (OffsetSpec::MaxTimestamp, count - 1), (OffsetSpec::EarliestLocal, 0),
        ];
        for (spec, wanted) in noted {
            let told = all(admin.list_offsets([(at(&name, 0), spec)], Default::default()).await?)?;
            same((spec, told[&at(&name, 0)].offset), (spec, wanted))?;
        }
        let first = read(&kafka, &name, 150, 1).await?;
        same(first[0].offset, 150)
    })
    .await;
    check("delete records", async {
        let name = topic("None");
        let told = all(admin.delete_records([(at(&name, 0), 50)], Default::default()).await?)?;
        same(told[&at(&name, 0)], 50)?;
        same(read(&kafka, &name, 0, 1).await?[0].offset, 50)
    })
    .await;
    check("group", group(bootstrap, &kafka, &admin, &topic("group"), replicas, protocol)).await;
    check("reassign", async {
        let name = topic("moved");
        create(&admin, &name, 1, 1).await?;
        all(admin.alter_partition_reassignments([(at(&name, 0), Some(vec![replicas]))], Default::default()).await?)?;
        until("moved", || async {
            let moving = admin.list_partition_reassignments(Default::default()).await?;
            let told = all(admin.describe_topics([&name], Default::default()).await?)?;
            Ok(moving.is_empty() && told[&name].partitions[0].replicas == vec![replicas])
        })
        .await
    })
    .await;
    check("delete topic", async {
        all(admin.delete_topics([&main], Default::default()).await?)?;
        until("gone", || async { Ok(!admin.list_topics(Default::default()).await?.contains(&main)) }).await
    })
    .await;
}

/// Over connections of its own: shared, one member's heartbeats would wait behind the other's JoinGroup.
async fn join(bootstrap: &str, topic: &str, protocol: GroupProtocol) -> Outcome<Arc<Consumer>> {
    let kafka = Kafka::builder(bootstrap).connect().await?;
    let builder = kafka.consumer(format!("{topic}-group")).auto_offset_reset(AutoOffsetReset::Earliest);
    let consumer = builder.group_protocol(protocol).enable_auto_commit(false).build().await?;
    consumer.subscribe([topic]).await?;
    Ok(Arc::new(consumer))
}

/// Polls, notes values, commits, until the consumer is closed.
fn run(consumer: Arc<Consumer>, seen: Arc<Mutex<HashSet<String>>>) {
    tokio::spawn(async move {
        while !consumer.is_closed() {
            let Ok(found) = consumer.poll(SHORT).await else { continue };
            let some = !found.is_empty();
            seen.lock().unwrap().extend(found.iter().filter_map(|r| r.value_str().map(String::from)));
            if some {
                let _ = consumer.commit().await;
            }
        }
    });
}

async fn group(bootstrap: &str, kafka: &Kafka, admin: &AdminClient, topic: &str, replicas: i32, protocol: GroupProtocol) -> Outcome {
    create(admin, topic, 4, replicas).await?;
    let producer = kafka.producer().build().await?;
    for i in 0..100 {
        let _ = producer.send(krafka::Record::new(topic, i.to_string()).key(i.to_string())).await?;
    }
    producer.close().await?;
    let name = format!("{topic}-group");
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let first = join(bootstrap, topic, protocol).await?;
    run(first.clone(), seen.clone());
    until("all read", || async { Ok(seen.lock().unwrap().len() == 100) }).await?;
    let second = join(bootstrap, topic, protocol).await?;
    run(second.clone(), seen.clone());
    let held = async || [first.assignment().await, second.assignment().await].map(|a| a.values().map(Vec::len).sum::<usize>());
    until("two each", || async { Ok(held().await == [2, 2]) }).await?;
    let told = all(admin.describe_consumer_groups([&name], Default::default()).await?)?;
    same(told[&name].members.len(), 2)?;
    second.close().await?;
    until("one with all", || async { Ok(held().await[0] == 4) }).await?;
    let told = all(admin.list_consumer_group_offsets(&name, Default::default()).await?)?;
    same(told.values().filter_map(|o| o.offset).sum::<i64>(), 100)?;
    same(all(admin.delete_consumer_groups([&name], Default::default()).await?).is_err(), true)?;
    first.close().await?;
    until("empty", || async { Ok(all(admin.describe_consumer_groups([&name], Default::default()).await?)?[&name].state == "Empty") }).await?;
    all(admin.alter_consumer_group_offsets(&name, [(at(topic, 0), 0)], Default::default()).await?)?;
    all(admin.delete_consumer_group_offsets(&name, [at(topic, 1)], Default::default()).await?)?;
    let told = all(admin.list_consumer_group_offsets(&name, Default::default()).await?)?;
    same((told[&at(topic, 0)].offset, told.contains_key(&at(topic, 1))), (Some(0), false))?;
    let listed = async || -> Outcome<bool> {
        let found = all(admin.list_consumer_groups(Default::default()).await?)?;
        Ok(found.values().flatten().any(|g| g.group_id == name))
    };
    same(listed().await?, true)?;
    all(admin.delete_consumer_groups([&name], Default::default()).await?)?;
    same(listed().await?, false)
}

async fn load(bootstrap: &str, kafka: Kafka, topic: &str, protocol: GroupProtocol) -> Outcome {
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let mut members = vec![];
    for _ in 0..2 {
        members.push(join(bootstrap, topic, protocol).await?);
        run(members.last().unwrap().clone(), seen.clone());
    }
    let producer = kafka.producer().delivery_timeout(2 * PATIENCE).build().await?;
    let ended = ended();
    let (mut sent, mut waiting) = (0, vec![]);
    while !ended.load(Ordering::Relaxed) {
        for _ in 0..10 {
            waiting.push(producer.enqueue(krafka::Record::new(topic, sent.to_string()).key(sent.to_string())).await?);
            sent += 1;
        }
        if sent == 1000 {
            println!("running");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    check("load", async {
        for one in waiting {
            let _ = one.await?;
        }
        println!("acknowledged {sent}");
        until("all read", || async { Ok(seen.lock().unwrap().len() == sent) }).await
    })
    .await;
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let kafka = Kafka::builder(&args[1]).connect().await?;
    let newer = args.last().unwrap() == "consumer";
    let protocol = if newer { GroupProtocol::Consumer } else { GroupProtocol::Classic };
    match args[0].as_str() {
        "features" => features(&args[1], kafka, args[2].parse()?, &args[3], protocol).await,
        _ => load(&args[1], kafka, &args[2], protocol).await?,
    }
    done()
}
