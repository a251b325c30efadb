use serde_json::json;

use super::assignment::packed;
use super::distribution::distributed;
use super::topology::{CpuInfo, CpuTopology};
use super::*;

/// Sockets with NUMA nodes of cores with two CPUs each; caches of two cores. CPUs are numbered as Linux does: the first of
/// every core, then the second.
fn machine(sockets: usize, nodes_per_socket: usize, cores_per_node: usize) -> CpuTopology {
    let cores = sockets * nodes_per_socket * cores_per_node;
    (0..cores * 2)
        .map(|cpu| {
            let core = cpu % cores;
            let node = core / cores_per_node;
            (cpu, CpuInfo { core, cache: core / 2, socket: node / nodes_per_socket, node })
        })
        .collect()
}

fn set(text: &str) -> CpuSet {
    CpuSet::parse(text).expect("a list")
}

/// CPUs that Kubernetes takes in its tests (`cpu_assignment_test.go`), on machines of the same form.
#[test]
fn cpus_are_packed() {
    // One socket, one NUMA node, four cores: CPUs 0-3 and their siblings 4-7.
    let small = machine(1, 1, 4);
    // Two sockets with one NUMA node of three cores each; siblings are 6-11.
    let dual = machine(2, 1, 3);
    for (topology, free, count, wanted) in [
        (&small, "1-7", 1, "4"),
        (&small, "1,3,5-7", 1, "6"),
        (&small, "0-7", 2, "0,4"),
        (&small, "0-7", 3, "0-1,4"),
        (&small, "0-7", 8, "0-7"),
        (&small, "0,2,4-7", 4, "0,2,4,6"),
        (&dual, "0-11", 2, "0,6"),
        (&dual, "0-11", 6, "0-2,6-8"),
        (&dual, "1-11", 6, "3-5,9-11"),
        (&dual, "1-11", 7, "3-6,9-11"),
        (&dual, "0-11", 0, ""),
    ] {
        let taken = packed(topology, &set(free), count, false).expect("enough");
        assert_eq!(taken.len(), count, "{free} {count}");
        assert_eq!(taken.to_string(), wanted, "{count} of {free}");
    }
    packed(&small, &set("0-2"), 4, false).expect_err("too few");
}

#[test]
fn caches_are_preferred() {
    // Eight cores, caches of cores 0-1, 2-3, …
    let topology = machine(1, 1, 8);
    let taken = packed(&topology, &set("1-15"), 4, true).expect("enough");
    assert_eq!(taken.to_string(), "2-3,10-11", "a whole cache");
    let taken = packed(&topology, &set("1-15"), 2, true).expect("enough");
    assert_eq!(topology.ids(topology::Level::Cache, &taken).len(), 1);
}

#[test]
fn cpus_are_distributed() {
    // Two NUMA nodes of four cores: node 0 has CPUs 0-3 and 8-11.
    let topology = machine(1, 2, 4);
    let by_node = |cpus: &CpuSet| {
        let of =
            |node| cpus.iter().filter(|cpu| topology.of(*cpu).is_some_and(|info| info.node == node)).count();
        (of(0), of(1))
    };
    for (free, count, group, wanted) in [
        ("0-15", 6, 1, (6, 0)),
        ("0-15", 8, 1, (8, 0)),
        ("0-15", 10, 1, (5, 5)),
        ("0-15", 12, 2, (6, 6)),
        ("0-15", 10, 2, (6, 4)),
        ("0-15", 16, 1, (8, 8)),
        ("0-3,12-15", 6, 1, (3, 3)),
        ("0-15", 9, 2, (8, 1)),
    ] {
        let taken = distributed(&topology, &set(free), count, group).expect("enough");
        assert_eq!(taken.len(), count);
        assert!(taken.is_subset(&set(free)));
        let (first, second) = by_node(&taken);
        assert_eq!((first.max(second), first.min(second)), wanted, "{count} of {free} in groups of {group}");
    }
    distributed(&topology, &set("0-3"), 5, 1).expect_err("too few");
}

/// A guaranteed pod with CPUs of its init containers and regular ones.
fn pod(uid: &str, init: &[&str], containers: &[&str]) -> Pod {
    let list = |prefix: &str, all: &[&str]| {
        let one = |(at, cpu): (usize, &&str)| {
            json!({"name": format!("{prefix}{at}"),
            "resources": {"requests": {"cpu": cpu, "memory": "1Mi"}, "limits": {"cpu": cpu, "memory": "1Mi"}}})
        };
        all.iter().enumerate().map(one).collect::<Vec<_>>()
    };
    let object = json!({"metadata": {"uid": uid, "name": uid, "namespace": "default"},
        "spec": {"initContainers": list("i", init), "containers": list("c", containers)}});
    serde_json::from_value(object).expect("a pod")
}

fn open(directory: &Path, options: &[(&str, &str)], reserved: &str) -> Result<Cpus, CpuError> {
    let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let options = StaticOptions::parse(&options, |_| true).expect("options");
    Cpus::with_topology(machine(1, 1, 4), options, Some(&set(reserved)), 0, directory)
}

async fn allocate(cpus: &Cpus, pod: &Pod) -> Result<(), String> {
    cpus.allocate_pod(pod, &|_| false).await.map_err(|error| format!("{}: {error}", error.reason()))
}

fn of(cpus: &Cpus, uid: &str, container: &str) -> String {
    cpus.of_container(uid, container).expect("a policy").to_string()
}

#[tokio::test]
async fn whole_cpus_of_guaranteed_pods_are_exclusive() {
    let directory = tempfile::tempdir().expect("a directory");
    let cpus = open(directory.path(), &[], "0").expect("opens");
    assert_eq!((of(&cpus, "x", "c0"), cpus.allocatable().to_string()), ("0-7".to_owned(), "1-7".to_owned()));
    allocate(&cpus, &pod("1", &[], &["2", "1500m"])).await.expect("allocated");
    assert_eq!((of(&cpus, "1", "c0"), of(&cpus, "1", "c1")), ("1,5".to_owned(), "0,2-4,6-7".to_owned()));
    assert!(cpus.disable_quota("1") && cpus.exclusive_of("1", "c1").is_none());
    let error = allocate(&cpus, &pod("2", &[], &["4", "2"])).await.expect_err("too many");
    assert_eq!(
        error,
        "UnexpectedAdmissionError: not enough cpus available to satisfy request: requested=2, available=1"
    );
    assert!(!cpus.disable_quota("2"), "a rejected pod keeps nothing");
    let mut burstable = pod("3", &[], &["1"]);
    if let Some(spec) = &mut burstable.spec {
        spec.containers[0].resources =
            serde_json::from_value(json!({"requests": {"cpu": "1"}})).expect("resources");
    }
    allocate(&cpus, &burstable).await.expect("shares");
    assert!(!cpus.disable_quota("3"));

    // Init containers leave their CPUs to later ones.
    allocate(&cpus, &pod("4", &["4"], &["2"])).await.expect("allocated");
    let (init, app) =
        (cpus.exclusive_of("4", "i0").expect("CPUs"), cpus.exclusive_of("4", "c0").expect("CPUs"));
    assert!(app.is_subset(&init) && init.len() == 4);

    // A restart keeps them; pods that are gone lose them.
    let again = open(directory.path(), &[], "0").expect("opens");
    assert_eq!(of(&again, "1", "c0"), "1,5");
    assert_eq!(again.exclusive_of("4", "i0"), Some(init));
    again.retain(|uid| uid == "1").await;
    assert_eq!(of(&again, "x", "x"), "0,2-4,6-7");
    again.release("1").await;
    assert_eq!(of(&again, "x", "x"), "0-7");
}

#[tokio::test]
async fn options_restrict_allocation() {
    let directory = tempfile::tempdir().expect("a directory");
    let cpus = open(directory.path(), &[("full-pcpus-only", "true")], "0").expect("opens");
    let error = allocate(&cpus, &pod("1", &[], &["3"])).await.expect_err("half a core");
    assert_eq!(
        error,
        "SMTAlignmentError: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );
    allocate(&cpus, &pod("1", &[], &["4"])).await.expect("allocated");
    let error = allocate(&cpus, &pod("2", &[], &["4"])).await.expect_err("one core is left");
    assert!(error.contains("available physical CPUs = 2, requested CPUs = 4"), "{error}");

    let strict = tempfile::tempdir().expect("a directory");
    let cpus = open(strict.path(), &[("strict-cpu-reservation", "true")], "0,4").expect("opens");
    assert_eq!(of(&cpus, "x", "x"), "1-3,5-7", "reserved CPUs are not shared");
    open(strict.path(), &[], "0,4").err().expect("the state is of the other setting");
}

#[test]
fn invalid_settings_and_states_are_rejected() {
    let options = |name: &str, value: &str| {
        let options = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        parse_policy("static", &options).expect_err("invalid")
    };
    assert!(options("align-by-socket", "true").contains("Alpha-level Options not enabled"));
    assert!(options("nonsense", "true").contains("unknown CPU Manager Policy option"));
    assert!(options("full-pcpus-only", "maybe").contains("bad value for option"));
    let both = [("distribute-cpus-across-numa", "true"), ("prefer-align-cpus-by-uncorecache", "1")];
    let both = both.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    assert!(parse_policy("static", &both).expect_err("both").contains("at the same time"));
    assert!(parse_policy("dynamic", &BTreeMap::new()).is_err());
    assert_eq!(parse_policy("none", &BTreeMap::new()), Ok(None));

    let directory = tempfile::tempdir().expect("a directory");
    let none = Cpus::with_topology(machine(1, 1, 4), StaticOptions::default(), None, 0, directory.path());
    assert!(matches!(none, Err(CpuError::NothingReserved)));
    assert!(matches!(open(directory.path(), &[], "99"), Err(CpuError::UnknownReserved(_))));
    let gates_off = StaticOptions::parse(&both, |_| false).expect_err("disabled");
    assert!(gates_off.contains("Beta-level Options not enabled"), "{gates_off}");
}

#[test]
fn state_must_match_policy_and_machine() {
    let entry = |cpus| BTreeMap::from([("1".to_owned(), BTreeMap::from([("c".to_owned(), set(cpus))]))]);
    for (policy, shared, entries, strict, reason) in [
        (
            "static",
            "0-6",
            BTreeMap::new(),
            false,
            "available CPUs \"0-7\" doesn't match with CPUs in state \"0-6\"",
        ),
        (
            "static",
            "0-8",
            BTreeMap::new(),
            false,
            "available CPUs \"0-7\" doesn't match with CPUs in state \"0-8\"",
        ),
        (
            "static",
            "1-7",
            BTreeMap::new(),
            false,
            "not all reserved cpus: \"0\" are present in defaultCpuSet",
        ),
        (
            "static",
            "0-7",
            entry("1"),
            false,
            "pod: 1, container: c cpuset: \"1\" overlaps with default cpuset",
        ),
        ("static", "", entry("0-7"), false, "default cpuset cannot be empty"),
        ("static", "", entry("1-7"), true, "default cpuset cannot be empty"),
        ("static", "0-7", BTreeMap::new(), true, "some of strictly reserved cpus: \"0\" are present"),
        (
            "none",
            "",
            BTreeMap::new(),
            false,
            "configured policy \"static\" differs from state checkpoint policy \"none\"",
        ),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let state = CpuState { default_cpu_set: set(shared), entries };
        state_file::write(&directory.path().join(state_file::FILE), policy, &state).expect("a file");
        let options: &[(&str, &str)] = if strict { &[("strict-cpu-reservation", "true")] } else { &[] };
        let error = open(directory.path(), options, "0").err().expect(reason).to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn policy_none_rejects_state_of_static() {
    let directory = tempfile::tempdir().expect("a directory");
    let none = || Cpus::open(&CpuManagerConfig::default(), 0, directory.path());
    assert!(!none().expect("no state").is_static());
    open(directory.path(), &[], "0").expect("opens");
    let error = none().err().expect("another policy").to_string();
    assert!(
        error.contains("configured policy \"none\" differs from state checkpoint policy \"static\""),
        "{error}"
    );
    std::fs::write(directory.path().join(state_file::FILE), "{").expect("a file");
    assert!(matches!(open(directory.path(), &[], "0"), Err(CpuError::Restore { .. })));
}

#[tokio::test]
async fn limits_have_cpus_and_no_quota_for_exclusive_ones() {
    let limits = || LinuxContainerResources { cpu_quota: 200_000, ..LinuxContainerResources::default() };
    let of = |cpus: &Cpus, container| {
        let limits = cpus.limit("1", container, limits());
        (limits.cpuset_cpus, limits.cpu_quota)
    };
    assert_eq!(of(&Cpus(None), "c0"), (String::new(), 200_000));
    let directory = tempfile::tempdir().expect("a directory");
    let mut cpus = open(directory.path(), &[], "0").expect("opens");
    allocate(&cpus, &pod("1", &[], &["2", "500m"])).await.expect("allocated");
    assert_eq!(of(&cpus, "c0"), ("1,5".to_owned(), -1));
    assert_eq!(of(&cpus, "c1"), ("0,2-4,6-7".to_owned(), 200_000));
    // The feature gate DisableCPUQuotaWithExclusiveCPUs is off.
    let parts = cpus.0.as_mut().and_then(Arc::get_mut).expect("one owner");
    parts.disables_quota = false;
    assert_eq!(of(&cpus, "c0"), ("1,5".to_owned(), 200_000));
    assert!(!cpus.disable_quota("1"));
}

#[tokio::test]
async fn failed_allocation_keeps_cpus_of_running_containers() {
    let directory = tempfile::tempdir().expect("a directory");
    let cpus = open(directory.path(), &[], "0").expect("opens");
    allocate(&cpus, &pod("1", &[], &["2"])).await.expect("allocated");
    let before = of(&cpus, "1", "c0");
    let grown = pod("1", &[], &["2", "7"]);
    let running = |name: &str| name == "c0";
    cpus.allocate_pod(&grown, &running).await.expect_err("too many");
    assert_eq!(of(&cpus, "1", "c0"), before);
    allocate(&cpus, &pod("1", &[], &["2"])).await.expect("present already");
    assert_eq!(of(&cpus, "1", "c0"), before);
}
