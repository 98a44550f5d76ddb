//! What the Rust programs share: named checks, one line of output each, and a few records to send.

use std::fmt::Debug;
use std::future::Future;
use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For what must come about by itself: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The first record's timestamp; each has one of its own.
pub const BASE_MS: i64 = 1_700_000_000_000;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
pub type Outcome<T = ()> = Result<T, Failure>;

static FAILED: AtomicBool = AtomicBool::new(false);

/// Runs one named check and prints `ok name` or `failed name: why`.
pub async fn check(name: &str, body: impl Future<Output = Outcome>) {
    let start = Instant::now();
    match body.await {
        Ok(()) => println!("ok {name} ({} ms)", start.elapsed().as_millis()),
        Err(why) => {
            FAILED.store(true, Ordering::Relaxed);
            println!("failed {name}: {}", format!("{why} {why:?}").replace('\n', " "));
        }
    }
}

pub fn same<T: PartialEq + Debug>(got: T, wanted: T) -> Outcome {
    if got == wanted { Ok(()) } else { Err(format!("got {got:?}, wanted {wanted:?}").chars().take(400).collect::<String>().into()) }
}

/// Asks again and again: what was agreed by controllers reaches each broker a moment later.
pub async fn until<F: Future<Output = Outcome<bool>>>(what: &str, mut look: impl FnMut() -> F) -> Outcome {
    let end = Instant::now() + PATIENCE;
    while !look().await? {
        if Instant::now() > end {
            return Err(format!("not in time: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Ends the process, with 1 if a check failed.
pub fn done() -> ! {
    std::process::exit(i32::from(FAILED.load(Ordering::Relaxed)))
}

/// True once the input has a line.
pub fn ended() -> Arc<AtomicBool> {
    let told = Arc::new(AtomicBool::new(false));
    let tell = told.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().lines().next();
        tell.store(true, Ordering::Relaxed);
    });
    told
}

#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub timestamp: i64,
}

/// Records of every kind; the last one is near 1 MB and does not compress.
pub fn records() -> Vec<Record> {
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    let mut state = 7u32;
    let noise = (0..900_000).map(|_| {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 24) as u8
    });
    let mut found = vec![
        (None, bytes("plain"), vec![]),
        (bytes("tombstone"), None, vec![]),
        (bytes(""), bytes(""), vec![]),
        (bytes("ключ"), bytes("grüße"), vec![("名".to_string(), vec![0, 255])]),
        (None, Some(b"same ".repeat(20_000)), vec![]),
    ];
    found.extend((0..200).map(|i| (bytes(&format!("k{}", i % 7)), bytes(&format!("v{i}")), vec![])));
    found.push((None, Some(noise.collect()), vec![]));
    let stamped = found.into_iter().zip(BASE_MS..);
    stamped.map(|((key, value, headers), timestamp)| Record { key, value, headers, timestamp }).collect()
}

/// Says what came back otherwise than it was sent; null and empty are different.
pub fn compare(got: &[Record]) -> Outcome {
    let sent = records();
    same(got.len(), sent.len())?;
    match sent.iter().zip(got).position(|(s, g)| s != g) {
        None => Ok(()),
        Some(i) => Err(format!("record {i} differs: {:.200}", format!("{:?}", got[i])).into()),
    }
}
