use super::*;

const CLOCK: ClockDiscipline = ClockDiscipline {
    offset: -0.5,
    max_error: 16.0,
    estimated_error: 0.25,
    frequency_ratio: 1.0,
    status: 64,
    tai_offset: 37,
    is_synchronized: false,
};

fn written(files: &[(&str, &str)]) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let proc = directory.path().join("proc");
    std::fs::create_dir(&proc).expect("a directory");
    for (name, text) in files {
        let path = proc.join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }
    NodeMetrics { proc, clock: || Some(CLOCK) }.page()
}

#[test]
fn series_have_the_names_and_units_of_node_exporter() {
    let page = written(&[
        ("stat", "cpu  9 9 9 9\ncpu0 150 2 30 4000 5 0 7 0 0 0\nintr 77 1 2\nctxt 5\nbtime 1700000000\n"),
        ("loadavg", "0.50 1.25 2.00 1/200 4242\n"),
        ("meminfo", "MemTotal:  1000 kB\nActive(anon): 3 kB\nHugePages_Total: 4\n"),
        ("vmstat", "pgfault 12\nnr_free_pages 9\n"),
        ("pressure/memory", "some avg10=0.00 total=1500000\nfull avg10=0.00 total=20\n"),
        ("diskstats", " 8 0 sda 1 2 3 4 5 6 7 8 9 10 11\n 8 1 sda1 1 2 3 4 5 6 7 8 9 10 11\n"),
        ("1/net/dev", "Inter-|\n face |\n eth0: 10 2 0 0 0 0 0 0 30 4 0 0 0 0 0 0\nveth1: 1 1 1\n"),
        ("1/net/snmp", "Tcp: InSegs OutSegs Other\nTcp: 5 6 7\n"),
        ("1/net/netstat", "TcpExt: TCPSynRetrans\nTcpExt: 8\nMPTcpExt: X\nMPTcpExt: 1\n"),
        ("../sys/class/net/eth0/operstate", "up\n"),
        ("../sys/class/net/lo/operstate", "unknown\n"),
        ("mdstat", "md0 : active raid1 sdb[1] sda[0](F)\n      8 blocks [2/1] [_U]\n"),
        ("../sys/class/net/bonding_masters", "bond0\n"),
        ("../sys/class/net/bond0/bonding/slaves", "eth0 eth1\n"),
        ("../sys/class/net/bond0/lower_eth0/bonding_slave/mii_status", "up\n"),
        ("../sys/class/net/bond0/slave_eth1/bonding_slave/mii_status", "down\n"),
        ("sys/kernel/hostname", "n\n"),
        ("sys/fs/file-nr", "100\t0\t9000\n"),
    ]);
    for line in [
        "node_cpu_seconds_total{cpu=\"0\",mode=\"user\"} 1.50",
        "node_cpu_seconds_total{cpu=\"0\",mode=\"idle\"} 40.00",
        "node_intr_total 77",
        "node_boot_time_seconds 1700000000",
        "node_load5 1.25",
        "node_memory_MemTotal_bytes 1024000",
        "node_memory_Active_anon_bytes 3072",
        "node_memory_HugePages_Total 4",
        "node_vmstat_pgfault 12",
        "node_pressure_memory_waiting_seconds_total 1.500000",
        "node_disk_read_bytes_total{device=\"sda\"} 1536",
        "node_disk_io_time_seconds_total{device=\"sda\"} 0.010",
        "node_network_transmit_bytes_total{device=\"eth0\"} 30",
        "node_filefd_maximum 9000",
        "node_netstat_Tcp_OutSegs 6",
        "node_netstat_TcpExt_TCPSynRetrans 8",
        "node_network_up{device=\"eth0\"} 1",
        "node_network_up{device=\"lo\"} 0",
        "node_timex_offset_seconds -0.5",
        "node_timex_sync_status 0",
        "node_md_disks{device=\"md0\",state=\"failed\"} 1",
        "node_md_state{device=\"md0\",state=\"active\"} 1",
        "node_md_disks_required{device=\"md0\"} 2",
        "node_bonding_slaves{master=\"bond0\"} 2",
        "node_bonding_active{master=\"bond0\"} 1",
        "node_textfile_scrape_error 0",
    ] {
        assert!(page.lines().any(|own| own == line), "{line} is not in\n{page}");
    }
    for part in ["cpu=\"\"", "sda1", "veth1", "nr_free_pages", "node_nf_conntrack_entries "] {
        assert!(!page.contains(part), "{part} is in\n{page}");
    }
    assert!(page.contains("nodename=\"n\""));
}

#[test]
fn machine_without_files_and_with_damaged_files_has_a_page() {
    assert!(written(&[]).contains("node_time_seconds"));
    let text = "x y\ncpu0 a 18446744073709551616 -1\n:\n\u{0}\nbtime\nsome total=\n";
    let all = ["stat", "loadavg", "meminfo", "vmstat", "diskstats", "1/net/dev", "1/mounts", "pressure/io"];
    let damaged = all.map(|name| (name, text));
    assert!(written(&damaged).contains("node_time_seconds"));
}

#[test]
fn page_of_this_machine_is_valid_exposition() {
    let page = NodeMetrics::default().page();
    assert!(page.contains("node_memory_MemAvailable_bytes "));
    let mut families = std::collections::BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("# TYPE ")) {
        assert!(families.insert(line.to_owned()), "{line} is there twice");
    }
    let samples = page.lines().filter(|line| !line.starts_with('#')).count();
    assert!(samples > 50, "{samples} samples");
}
