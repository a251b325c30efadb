//! Arrays of disks (`/proc/mdstat`) and bonds of network interfaces.

use std::path::Path;

use super::page::Page;
use super::read;

/// Value of a family for an array.
type Value = fn(&Array) -> u64;

/// An array of the `md` driver.
#[derive(Debug, Default, PartialEq, Eq)]
struct Array {
    name: String,
    state: &'static str,
    required: u64,
    active: u64,
    failed: u64,
    spare: u64,
    blocks: u64,
    synced: u64,
}

/// States of an array, of which one is 1.
const STATES: [&str; 6] = ["active", "inactive", "recovering", "resync", "check", "reshaping"];

pub fn of_disks(proc: &Path, page: &mut Page) {
    let arrays = parse(&read(proc, "mdstat"));
    if arrays.is_empty() {
        return;
    }
    page.gauge("node_md_disks", "Number of active/failed/spare disks of device.");
    for array in &arrays {
        for (state, count) in [("active", array.active), ("failed", array.failed), ("spare", array.spare)] {
            page.sample("node_md_disks", &[("device", &array.name), ("state", state)], count);
        }
    }
    page.gauge("node_md_state", "Indicates the state of md-device.");
    for array in &arrays {
        for state in STATES {
            let labels = [("device", array.name.as_str()), ("state", state)];
            page.sample("node_md_state", &labels, u8::from(array.state == state));
        }
    }
    let families: [(&str, &str, Value); 3] = [
        ("node_md_disks_required", "Total number of disks of device.", |array| array.required),
        ("node_md_blocks", "Total number of blocks on device.", |array| array.blocks),
        ("node_md_blocks_synced", "Number of blocks synced on device.", |array| array.synced),
    ];
    for (name, help, value) in families {
        page.gauge(name, help);
        arrays.iter().for_each(|array| page.sample(name, &[("device", &array.name)], value(array)));
    }
}

/// Numbers between two characters, such as `[2/1]`.
fn pair(text: &str, begin: char, end: char) -> Option<(u64, u64)> {
    text.split(begin).skip(1).find_map(|rest| {
        let (first, second) = rest.split(end).next()?.split_once('/')?;
        Some((first.parse().ok()?, second.parse().ok()?))
    })
}

fn parse(text: &str) -> Vec<Array> {
    let mut arrays: Vec<Array> = Vec::new();
    for line in text.lines() {
        let header = line
            .split_once(" : ")
            .filter(|(name, _)| !name.starts_with([' ', '\t']) && name.starts_with("md"));
        if let Some((name, rest)) = header {
            let disks = rest.split_whitespace().filter(|word| word.contains('['));
            let count = |mark: &str| {
                u64::try_from(disks.clone().filter(|disk| disk.ends_with(mark)).count()).unwrap_or(0)
            };
            let (failed, spare, all) = (count("(F)"), count("(S)"), count(""));
            arrays.push(Array {
                name: name.trim().to_owned(),
                state: if rest.starts_with("active") { "active" } else { "inactive" },
                required: all.saturating_sub(spare),
                active: all.saturating_sub(failed).saturating_sub(spare),
                failed,
                spare,
                ..Array::default()
            });
            continue;
        }
        let Some(array) = arrays.last_mut() else { continue };
        if let Some((blocks, rest)) = line.trim_start().split_once(" blocks") {
            array.blocks = blocks.parse().unwrap_or(0);
            array.synced = array.blocks;
            if let Some((required, active)) = pair(rest, '[', ']') {
                (array.required, array.active) = (required, active);
            }
            continue;
        }
        let operation =
            [("recovery", "recovering"), ("resync", "resync"), ("check", "check"), ("reshape", "reshaping")];
        if let Some((_, state)) = operation.into_iter().find(|(word, _)| line.contains(&format!("{word} =")))
        {
            array.state = state;
            if let Some((synced, _)) = pair(line, '(', ')') {
                array.synced = synced;
            }
        }
    }
    arrays
}

pub fn of_bonds(proc: &Path, page: &mut Page) {
    let masters = read(proc, "../sys/class/net/bonding_masters");
    let mut bonds = Vec::new();
    for master in masters.split_whitespace().filter(|name| !name.contains('/')) {
        let directory = format!("../sys/class/net/{master}");
        let slaves = read(proc, &format!("{directory}/bonding/slaves"));
        let is_up = |slave: &&str| {
            let state =
                |link: &str| read(proc, &format!("{directory}/{link}_{slave}/bonding_slave/mii_status"));
            let status =
                Some(state("lower")).filter(|state| !state.is_empty()).unwrap_or_else(|| state("slave"));
            status.trim() == "up"
        };
        let slaves: Vec<&str> = slaves.split_whitespace().filter(|name| !name.contains('/')).collect();
        bonds.push((master, slaves.len(), slaves.iter().filter(|slave| is_up(slave)).count()));
    }
    if bonds.is_empty() {
        return;
    }
    page.gauge("node_bonding_slaves", "Number of configured slaves per bonding interface.");
    bonds.iter().for_each(|(master, all, _)| page.sample("node_bonding_slaves", &[("master", master)], all));
    page.gauge("node_bonding_active", "Number of active slaves per bonding interface.");
    bonds.iter().for_each(|(master, _, up)| page.sample("node_bonding_active", &[("master", master)], up));
}

/// No text files are read, which is no error.
pub fn of_text_files(_: &Path, page: &mut Page) {
    let name = "node_textfile_scrape_error";
    page.gauge(name, "1 if there was an error opening or reading a file, 0 otherwise.");
    page.sample(name, &[], 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_have_disks_states_and_blocks() {
        let text = "Personalities : [raid1] [raid6] [raid5] [raid4] [raid0]\n\
            md0 : active raid1 sdb1[1] sda1[0](F) sdc1[2](S)\n      136448 blocks [2/1] [_U]\n      \n\
            md1 : active raid5 sdd[3] sde[1] sdf[0]\n      200 blocks super 1.2 level 5, 512k chunk [3/2] [UU_]\n      \
            [==>....]  recovery = 8.5% (17/200) finish=17.0min speed=259783K/sec\n\
            md2 : active raid0 sdg[0] sdh[1]\n      500 blocks 64k chunks\n\
            md3 : inactive sdi[0](S)\n      10 blocks super 1.2\nunused devices: <none>\n";
        let found = parse(text);
        let facts: Vec<_> = found
            .iter()
            .map(|array| (&*array.name, array.state, array.required, array.active, array.failed, array.spare))
            .collect();
        assert_eq!(
            facts,
            [
                ("md0", "active", 2, 1, 1, 1),
                ("md1", "recovering", 3, 2, 0, 0),
                ("md2", "active", 2, 2, 0, 0),
                ("md3", "inactive", 0, 0, 0, 1),
            ]
        );
        assert_eq!((found[1].blocks, found[1].synced, found[0].synced), (200, 17, 136_448));
        assert_eq!(
            parse("blocks\n[/] blocks\nmd0 : \n x blocks [9"),
            [Array { name: "md0".to_owned(), state: "inactive", ..Array::default() }]
        );
    }
}
