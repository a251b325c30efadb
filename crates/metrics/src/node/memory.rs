//! Memory and paging.

use std::path::Path;

use super::page::Page;
use super::read;

/// Every line of `/proc/meminfo`: `Active(anon): 12 kB` is `node_memory_Active_anon_bytes`.
pub fn of_memory(proc: &Path, page: &mut Page) {
    for line in read(proc, "meminfo").lines() {
        let Some((key, rest)) = line.split_once(':') else { continue };
        let mut words = rest.split_whitespace();
        let Some(value) = words.next().and_then(|value| value.parse::<u64>().ok()) else { continue };
        let (unit, factor) = if words.next() == Some("kB") { ("_bytes", 1024) } else { ("", 1) };
        let key = key.replace('(', "_").replace(')', "");
        if !key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            continue;
        }
        let name = format!("node_memory_{key}{unit}");
        page.gauge(&name, &format!("Memory information field {key}{unit}."));
        page.sample(&name, &[], value.saturating_mul(factor));
    }
}

const PAGING: [&str; 7] = ["oom_kill", "pgfault", "pgmajfault", "pgpgin", "pgpgout", "pswpin", "pswpout"];

pub fn of_paging(proc: &Path, page: &mut Page) {
    for line in read(proc, "vmstat").lines() {
        let Some((key, value)) = line.split_once(' ') else { continue };
        let Some(value) = PAGING.contains(&key).then(|| value.trim().parse::<u64>().ok()).flatten() else {
            continue;
        };
        let name = format!("node_vmstat_{key}");
        page.family_untyped(&name, &format!("/proc/vmstat information field {key}."));
        page.sample(&name, &[], value);
    }
}
