//! rskafka: a line of JSON in, a line of JSON out, as peer.py says. It has no groups and no options for a producer.
use std::{collections::BTreeMap, future::Future, io::BufRead, sync::Arc};

use base64::{engine::general_purpose::STANDARD, Engine};
use chrono::{DateTime, Utc};
use rskafka::client::partition::{Compression, OffsetAt, PartitionClient, UnknownTopicHandling};
use rskafka::client::{Client, ClientBuilder};
use rskafka::record::Record;
use serde_json::{json, Map, Value};

type Answer = Result<Value, Box<dyn std::error::Error>>;

fn text(data: &Option<Vec<u8>>) -> Value {
    data.as_ref().map_or(Value::Null, |bytes| STANDARD.encode(bytes).into())
}

fn data(value: &Value) -> Option<Vec<u8>> {
    value.as_str().map(|text| STANDARD.decode(text).unwrap())
}

fn time(milliseconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(milliseconds).unwrap()
}

async fn connected(asked: &Value) -> Result<Client, Box<dyn std::error::Error>> {
    Ok(ClientBuilder::new(vec![asked["server"].as_str().unwrap().to_owned()]).build().await?)
}

async fn partition(client: &Client, place: &Value) -> Result<PartitionClient, Box<dyn std::error::Error>> {
    let (topic, number) = (place[0].as_str().unwrap(), place[1].as_i64().unwrap() as i32);
    Ok(client.partition_client(topic, number, UnknownTopicHandling::Error).await?)
}

/// Fetch until there are so many records. rskafka returns all records of a batch, and those below the offset, too.
async fn read(asked: &Value) -> Answer {
    let client = connected(asked).await?;
    let mut rows = vec![];
    for place in asked["places"].as_array().unwrap() {
        let partition = partition(&client, place).await?;
        let mut next = match asked["from"].as_i64() {
            Some(offset) => offset,
            None => partition.get_offset(OffsetAt::Earliest).await?,
        };
        let end = partition.get_offset(OffsetAt::Latest).await?;
        while next < end {
            let (records, _) = partition.fetch_records(next, 1..10_000_000, 100).await?;
            if records.iter().all(|one| one.offset < next) {
                break;
            }
            for one in records.into_iter().filter(|one| one.offset >= next) {
                let headers: Vec<_> = one.record.headers.iter().map(|(n, v)| json!([n, text(&Some(v.clone()))])).collect();
                let (key, value) = (text(&one.record.key), text(&one.record.value));
                rows.push(json!([place[0], place[1], one.offset, one.record.timestamp.timestamp_millis(), -1, key, value, headers]));
            }
            next = rows.last().unwrap()[2].as_i64().unwrap() + 1;
        }
    }
    Ok(json!({ "records": rows }))
}

async fn offsets(asked: &Value) -> Answer {
    let client = connected(asked).await?;
    let mut rows = vec![];
    for place in asked["places"].as_array().unwrap() {
        let partition = partition(&client, place).await?;
        let mut row = vec![partition.get_offset(OffsetAt::Earliest).await?, partition.get_offset(OffsetAt::Latest).await?];
        for milliseconds in asked["times"].as_array().unwrap() {
            let at = OffsetAt::Timestamp(time(milliseconds.as_i64().unwrap()));
            row.push(partition.get_offset(at).await.unwrap_or(-1));
        }
        rows.push(row);
    }
    Ok(json!({ "offsets": rows }))
}

async fn produce(asked: &Value) -> Answer {
    let client = connected(asked).await?;
    let codec = match asked["options"]["compression.type"].as_str() {
        Some("gzip") => Compression::Gzip,
        Some("snappy") => Compression::Snappy,
        Some("lz4") => Compression::Lz4,
        Some("zstd") => Compression::Zstd,
        _ => Compression::NoCompression,
    };
    let mut parts: BTreeMap<i64, Vec<(usize, Record)>> = BTreeMap::new();
    let rows = asked["records"].as_array().unwrap();
    for (number, row) in rows.iter().enumerate() {
        let headers = row[4].as_array().unwrap().iter();
        let record = Record {
            key: data(&row[2]),
            value: data(&row[3]),
            headers: headers.map(|h| (h[0].as_str().unwrap().to_owned(), data(&h[1]).unwrap())).collect(),
            timestamp: time(row[1].as_i64().unwrap()),
        };
        parts.entry(row[0].as_i64().unwrap()).or_default().push((number, record));
    }
    let mut placed = vec![-1; rows.len()];
    for (number, records) in parts {
        let partition = partition(&client, &json!([asked["topic"], number])).await?;
        let (numbers, records): (Vec<_>, Vec<_>) = records.into_iter().unzip();
        let found = partition.produce(records, codec).await?;
        numbers.into_iter().zip(found).for_each(|(number, offset)| placed[number] = offset);
    }
    Ok(json!({ "offsets": placed }))
}

async fn step<F: Future<Output = Answer>>(steps: &mut Map<String, Value>, name: &str, result: F) {
    tokio::time::sleep(std::time::Duration::from_millis(300)).await; // A broker applies changes after its response.
    let answer = result.await.unwrap_or_else(|error| {
        // The words of the server follow.
        json!({ "error": error.to_string().split(" with message").next() })
    });
    steps.insert(name.into(), answer);
}

async fn admin(asked: &Value) -> Answer {
    let client = Arc::new(connected(asked).await?);
    let controller = client.controller_client()?;
    let topic = asked["topic"].as_str().unwrap();
    let mut steps = Map::new();
    for name in ["create topic", "create topic again"] {
        step(&mut steps, name, async { Ok(controller.create_topic(topic, 2, 1, 5_000).await.map(|()| Value::Null)?) }).await;
    }
    step(&mut steps, "list topics", async {
        let topics = client.list_topics().await?;
        Ok(json!(topics.iter().find(|one| one.name == topic).map(|one| one.partitions.len())))
    })
    .await;
    step(&mut steps, "delete records", async {
        let partition = partition(&client, &json!([asked["filled"], 0])).await?;
        partition.delete_records(3, 5_000).await?;
        Ok(json!(partition.get_offset(OffsetAt::Earliest).await?))
    })
    .await;
    for name in ["delete topic", "delete topic again"] {
        step(&mut steps, name, async { Ok(controller.delete_topic(topic, 5_000).await.map(|()| Value::Null)?) }).await;
    }
    Ok(json!({ "steps": steps }))
}

#[tokio::main]
async fn main() {
    for line in std::io::stdin().lock().lines() {
        let asked: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let answer = match asked["do"].as_str().unwrap() {
            "read" => read(&asked).await,
            "offsets" => offsets(&asked).await,
            "produce" => produce(&asked).await,
            "admin" => admin(&asked).await,
            other => Err(format!("this client cannot {other}").into()),
        };
        println!("{}", answer.unwrap_or_else(|error| json!({ "error": error.to_string() })));
    }
}
