use std::hint::black_box;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::read::GzDecoder;
use prost::Message as _;

use super::*;

#[inline(never)]
fn burns_cpu_until(stop: &AtomicBool) -> u64 {
    let mut sum = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        for number in 0..1000_u64 {
            sum = black_box(sum.wrapping_mul(31).wrapping_add(number));
        }
    }
    sum
}

fn decoded(bytes: &[u8]) -> encode::Profile {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain).expect("gzip");
    encode::Profile::decode(&*plain).expect("a profile")
}

/// Names of the functions on the stacks of a profile's samples.
fn names(profile: &encode::Profile) -> Vec<&str> {
    profile
        .function
        .iter()
        .filter_map(|function| profile.string_table.get(usize::try_from(function.name).ok()?))
        .map(String::as_str)
        .collect()
}

/// Checks that `go tool pprof`, where Go is installed, reads a profile and lists a function.
fn is_read_by_pprof(profile: &[u8], function: &str) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("profile.pb.gz");
    std::fs::write(&file, profile).expect("a file");
    let command = std::process::Command::new("go")
        .args(["tool", "pprof", "-top", "-nodecount=500"])
        .arg(&file)
        .env("PPROF_TMPDIR", directory.path())
        .current_dir(directory.path())
        .output();
    let output = match command {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("partly skipped: go tool pprof is not here");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains(function), "{out}{error}");
}

/// A profile; waits for the end of one that another test records.
async fn when_free(duration: Duration) -> Samples {
    loop {
        match cpu::profile(duration).await {
            Err(Error::Busy) => tokio::time::sleep(Duration::from_millis(20)).await,
            other => return other.expect("a profile"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cpu_profile_names_the_busy_function_and_is_exclusive() {
    let stop = Arc::new(AtomicBool::new(false));
    let busy = {
        let stop = Arc::clone(&stop);
        tokio::task::spawn_blocking(move || burns_cpu_until(&stop))
    };
    // Short profiles are rejected once the first one records.
    let rejected = async {
        while !matches!(cpu::profile(Duration::from_millis(1)).await, Err(Error::Busy)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let rejected = tokio::time::timeout(Duration::from_secs(60), rejected);
    let (first, rejected) = tokio::join!(when_free(Duration::from_secs(1)), rejected);
    stop.store(true, Ordering::Relaxed);
    busy.await.expect("no panic");
    rejected.expect("a second profile is rejected");
    let samples = first;
    let profile = decoded(&samples.encode());
    assert!(names(&profile).iter().any(|name| name.contains("burns_cpu_until")), "{:?}", names(&profile));
    assert!(profile.sample.iter().all(|sample| sample.value.len() == 2));
    is_read_by_pprof(&samples.encode(), "burns_cpu_until");
    // The recording has ended: another one can start.
    when_free(Duration::from_millis(1)).await;
}

#[tokio::test]
async fn cancelled_cpu_profile_can_be_repeated() {
    let cancelled = tokio::time::timeout(Duration::from_millis(20), when_free(Duration::from_secs(60))).await;
    assert!(cancelled.is_err());
    when_free(Duration::from_millis(10)).await;
}

/// Size by the rate of a block that is always sampled: no distance between samples is larger.
const LARGE: usize = 64;

#[tokio::test]
async fn heap_profile_has_allocated_and_live_bytes() {
    assert!(matches!(heap::profile(Some(Duration::from_secs(1))).await, Err(Error::NoAllocator)));
    heap::install();
    let record = async {
        tokio::task::yield_now().await;
        assert!(heap::recording());
        // Addresses of no block: the allocator of this test reports nothing itself.
        for block in 1..=8 {
            heap::allocated(block * 16, LARGE * heap::RATE);
        }
        for block in 1..=3 {
            heap::freed(block * 16);
        }
        heap::freed(0xdead0);
        assert!(matches!(heap::profile(Some(Duration::from_secs(1))).await, Err(Error::Busy)));
    };
    let (samples, ()) = tokio::join!(heap::profile(Some(Duration::from_millis(300))), record);
    let samples = samples.expect("a profile");
    let sum = |at: usize| samples.stacks.iter().map(|(_, values)| values[at]).sum::<u64>();
    let size = (LARGE * heap::RATE) as u64;
    assert_eq!([sum(0), sum(1), sum(2), sum(3)], [8, 8 * size, 5, 5 * size]);
    assert!(!heap::recording());
    let profile = decoded(&samples.encode());
    assert!(names(&profile).iter().any(|name| name.contains("heap_profile_has_allocated")));
    continuous_heap_profile_has_blocks_in_use().await;
}

/// Not a test of its own: recording is a state of the process.
async fn continuous_heap_profile_has_blocks_in_use() {
    const RATE: usize = 1 << 20;
    let sums = |samples: &Samples| {
        let sum = |at: usize| samples.stacks.iter().map(|(_, values)| values[at]).sum::<u64>();
        [sum(0), sum(1), sum(2), sum(3)]
    };
    heap::record_continuously(RATE).expect("starts");
    for block in 1..=4 {
        heap::allocated(block * 4096, LARGE * RATE);
    }
    heap::freed(4096);
    let size = (LARGE * RATE) as u64;
    let all = heap::profile(None).await.expect("a profile");
    assert_eq!(sums(&all), [4, 4 * size, 3, 3 * size]);
    assert_eq!(all.period, RATE as u64);
    let record = async {
        heap::freed(2 * 4096);
        heap::allocated(5 * 4096, 3 * LARGE * RATE);
    };
    let (added, ()) = tokio::join!(heap::profile(Some(Duration::from_millis(50))), record);
    assert_eq!(sums(&added.expect("a profile"))[..2], [1, 3 * size]);
    assert_eq!(sums(&heap::profile(None).await.expect("a profile")), [5, 7 * size, 3, 5 * size]);
    // Work that repeats itself: of all its allocations, none is sampled each time and none never.
    for _ in 0..400 {
        allocates_a_small_block(RATE);
        heap::allocated(7 * 4096, RATE - RATE / 16);
        heap::freed(7 * 4096);
    }
    let profile = decoded(&heap::profile(None).await.expect("a profile").encode());
    assert!(names(&profile).iter().any(|name| name.contains("allocates_a_small_block")));
}

#[inline(never)]
fn allocates_a_small_block(rate: usize) {
    heap::allocated(black_box(6 * 4096), rate / 16);
    heap::freed(black_box(6 * 4096));
}
