//! rskafka against a broker: `rskafka features BOOTSTRAP REPLICAS PREFIX` or `rskafka load BOOTSTRAP TOPIC`.
//! It has no groups and no idempotence.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use chrono::DateTime;
use foreign::{BASE_MS, Outcome, Record, check, compare, done, ended, records, same, until};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record as Theirs;

const LIMIT_MS: i32 = 30_000;

fn theirs(record: Record) -> Theirs {
    let timestamp = DateTime::from_timestamp_millis(record.timestamp).unwrap();
    Theirs { key: record.key, value: record.value, headers: BTreeMap::from_iter(record.headers), timestamp }
}

fn ours(record: Theirs) -> Record {
    let headers = record.headers.into_iter().collect();
    Record { key: record.key, value: record.value, headers, timestamp: record.timestamp.timestamp_millis() }
}

/// From `offset` to the end, as often as it takes.
async fn read(partition: &PartitionClient, mut offset: i64) -> Outcome<Vec<Theirs>> {
    let mut found = vec![];
    loop {
        let (some, end) = partition.fetch_records(offset, 1..2_000_000, 500).await?;
        for one in some {
            same(one.offset, offset)?;
            offset += 1;
            found.push(one.record);
        }
        if offset >= end {
            return Ok(found);
        }
    }
}

async fn create(client: &Client, topic: &str, partitions: i32, replicas: i16) -> Outcome<PartitionClient> {
    client.controller_client()?.create_topic(topic, partitions, replicas, LIMIT_MS).await?;
    Ok(client.partition_client(topic, 0, UnknownTopicHandling::Retry).await?)
}

async fn features(client: Client, replicas: i16, prefix: &str) {
    let topic = |name: &str| format!("{prefix}-{name}");
    check("topics", async {
        create(&client, &topic("main"), 3, replicas).await?;
        until("listed with three", || async {
            Ok(client.list_topics().await?.iter().any(|t| t.name == topic("main") && t.partitions.len() == 3))
        })
        .await?;
        let again = client.controller_client()?.create_topic(topic("main"), 1, 1, LIMIT_MS).await;
        same(again.is_err(), true)?;
        client.controller_client()?.delete_topic(topic("main"), LIMIT_MS).await?;
        until("gone", || async { Ok(client.list_topics().await?.iter().all(|t| t.name != topic("main"))) }).await
    })
    .await;
    let codecs = [Compression::NoCompression, Compression::Gzip, Compression::Lz4, Compression::Snappy, Compression::Zstd];
    for codec in codecs {
        check(&format!("records {codec:?}"), async {
            let partition = create(&client, &topic(&format!("{codec:?}")), 1, replicas).await?;
            let sent = partition.produce(records().into_iter().map(theirs).collect(), codec).await?;
            same(sent, (0..records().len() as i64).collect())?;
            compare(&read(&partition, 0).await?.into_iter().map(ours).collect::<Vec<_>>())
        })
        .await;
    }
    check("offsets by time", async {
        let partition = create(&client, &topic("times"), 1, replicas).await?;
        partition.produce(records().into_iter().map(theirs).collect(), Compression::NoCompression).await?;
        let at = DateTime::from_timestamp_millis(BASE_MS + 100).unwrap();
        same(partition.get_offset(OffsetAt::Timestamp(at)).await?, 100)?;
        same(partition.get_offset(OffsetAt::Earliest).await?, 0)?;
        same(partition.get_offset(OffsetAt::Latest).await?, records().len() as i64)
    })
    .await;
    check("delete records", async {
        let partition = client.partition_client(topic("times"), 0, UnknownTopicHandling::Error).await?;
        partition.delete_records(50, LIMIT_MS).await?;
        same(partition.get_offset(OffsetAt::Earliest).await?, 50)?;
        same(partition.fetch_records(10, 1..1000, 100).await.is_err(), true)?;
        same(read(&partition, 50).await?.len(), records().len() - 50)
    })
    .await;
}

async fn load(client: Client, topic: &str) -> Outcome {
    let mut partitions = vec![];
    for number in 0..3 {
        partitions.push(client.partition_client(topic, number, UnknownTopicHandling::Retry).await?);
    }
    let ended = ended();
    let mut sent = 0;
    while !ended.load(Ordering::Relaxed) {
        let timestamp = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis() as i64;
        let one = |i: usize| Record { key: None, value: Some(i.to_string().into()), headers: vec![], timestamp };
        let batch = (sent..sent + 10).map(|i| theirs(one(i)));
        partitions[sent / 10 % 3].produce(batch.collect(), Compression::NoCompression).await?;
        sent += 10;
        if sent == 1000 {
            println!("running");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("acknowledged {sent}");
    check("load", async {
        let mut seen = HashSet::new();
        for partition in &partitions {
            for record in read(partition, 0).await? {
                seen.insert(String::from_utf8(record.value.unwrap())?);
            }
        }
        same(seen.len(), sent)
    })
    .await;
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let client = ClientBuilder::new(args[1].split(',').map(String::from).collect()).build().await?;
    match args[0].as_str() {
        "features" => features(client, args[2].parse()?, &args[3]).await,
        _ => load(client, &args[2]).await?,
    }
    done()
}
