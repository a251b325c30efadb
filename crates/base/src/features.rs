//! Feature gates of Kubernetes v1.36: the table, and the gates that the process was started with.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};

/// Stage of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    GA,
    Deprecated,
}

use Stage::{Alpha, Beta, Deprecated, GA};

impl Stage {
    /// The label of `kubernetes_feature_enabled`.
    fn label(self) -> &'static str {
        match self {
            Alpha => "ALPHA",
            Beta => "BETA",
            GA => "",
            Deprecated => "DEPRECATED",
        }
    }
}

/// Gates that set all gates of a stage.
const ALL: [(&str, Stage); 2] = [("AllAlpha", Alpha), ("AllBeta", Beta)];

/// Gates that Ferry implements.
pub const SWITCHED: &[&str] = &[
    "AllowParsingUserUIDFromCertAuth",
    "CBORServingAndStorage",
    "CPUManagerPolicyBetaOptions",
    "ClusterTrustBundleProjection",
    "DRAResourceClaimGranularStatusAuthorization",
    "DisableCPUQuotaWithExclusiveCPUs",
    "StorageVersionMigrator",
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureGateError {
    #[error("missing bool value for {0}")]
    NoValue(String),
    #[error("invalid value of {0}={1}, err: strconv.ParseBool: parsing {1:?}: invalid syntax")]
    Value(String, String),
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    #[error("cannot set feature gate {0} to {1}, feature is locked to {2}")]
    Locked(String, bool, bool),
    #[error("{0} is enabled, but depends on features that are disabled: [{1}]")]
    Dependency(String, String),
}

/// The gates of a process; unset ones have their defaults.
///
/// ```
/// use base::features::FeatureGates;
///
/// let gates = FeatureGates::parse(["StorageVersionMigrator=false"])?;
/// assert!(!gates.enabled("StorageVersionMigrator"));
/// assert!(FeatureGates::parse(["NoSuchGate=true"]).is_err());
/// # Ok::<(), base::features::FeatureGateError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    set: BTreeMap<&'static str, bool>,
}

impl FeatureGates {
    /// Reads `gate=bool` pairs.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = &'a str>) -> Result<Self, FeatureGateError> {
        let mut values = BTreeMap::new();
        for pair in pairs.into_iter().filter(|pair| !pair.is_empty()) {
            let (name, value) =
                pair.split_once('=').map_or((pair, None), |(name, value)| (name, Some(value)));
            let name = name.trim();
            let value = value.ok_or_else(|| FeatureGateError::NoValue(name.to_owned()))?.trim();
            let on = match value {
                "true" | "1" | "t" | "T" | "TRUE" | "True" => true,
                "false" | "0" | "f" | "F" | "FALSE" | "False" => false,
                _ => return Err(FeatureGateError::Value(name.to_owned(), value.to_owned())),
            };
            values.insert(name, on);
        }
        Self::new(values)
    }

    /// Gates with these values.
    pub fn new<'a>(values: impl IntoIterator<Item = (&'a str, bool)>) -> Result<Self, FeatureGateError> {
        let mut gates = Self::default();
        let mut stages = Vec::new();
        for (name, on) in values {
            if let Some((_, stage)) = ALL.iter().find(|(all, _)| *all == name) {
                stages.push((*stage, on));
                continue;
            }
            let row = GATES.iter().find(|row| row.0 == name);
            let (name, _, default, locked) =
                *row.ok_or_else(|| FeatureGateError::Unknown(name.to_owned()))?;
            if locked && on != default {
                return Err(FeatureGateError::Locked(name.to_owned(), on, default));
            }
            gates.set.insert(name, on);
        }
        for (stage, on) in stages {
            let of_stage = GATES.iter().filter(|row| row.1 == stage && !row.3);
            for row in of_stage {
                gates.set.entry(row.0).or_insert(on);
            }
        }
        for (name, needed) in DEPENDENCIES.iter().filter(|(name, _)| gates.enabled(name)) {
            let missing: Vec<&str> = needed.iter().copied().filter(|name| !gates.enabled(name)).collect();
            if !missing.is_empty() {
                return Err(FeatureGateError::Dependency((*name).to_owned(), missing.join(" ")));
            }
        }
        Ok(gates)
    }

    /// Reports whether a feature is on; `false` for an unknown one.
    pub fn enabled(&self, name: &str) -> bool {
        let default = || GATES.iter().find(|row| row.0 == name).is_some_and(|row| row.2);
        self.set.get(name).copied().unwrap_or_else(default)
    }

    /// Gates with a non-default value that have no effect in Ferry.
    pub fn without_effect(&self) -> Vec<String> {
        let changed = self.set.iter().filter(|(name, on)| {
            GATES.iter().any(|row| row.0 == **name && row.2 != **on) && !SWITCHED.contains(*name)
        });
        changed.map(|(name, on)| format!("{name}={on}")).collect()
    }

    /// Sets the gates of the process. Only the first call has an effect.
    pub fn install(self) {
        let _ = PROCESS.set(self);
    }
}

static PROCESS: OnceLock<FeatureGates> = OnceLock::new();

/// Reports whether a feature of this process is on.
pub fn enabled(name: &str) -> bool {
    match PROCESS.get() {
        Some(gates) => gates.enabled(name),
        None => FeatureGates::default().enabled(name),
    }
}

/// Computes `kubernetes_feature_enabled` on each scrape.
#[derive(Debug)]
pub struct FeatureCollector {
    desc: Desc,
}

const METRIC: &str = "kubernetes_feature_enabled";
const HELP: &str = "[BETA] This metric records the data about the stage and enablement of a k8s feature.";

impl FeatureCollector {
    pub fn new() -> Result<Self, prometheus::Error> {
        let labels = vec!["name".to_owned(), "stage".to_owned()];
        Ok(Self { desc: Desc::new(METRIC.to_owned(), HELP.to_owned(), labels, HashMap::new())? })
    }
}

impl Collector for FeatureCollector {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Ok(rows) = IntGaugeVec::new(Opts::new(METRIC, HELP), &["name", "stage"]) else {
            return Vec::new();
        };
        let none = FeatureGates::default();
        let gates = PROCESS.get().unwrap_or(&none);
        for (name, stage, default, _) in GATES {
            let on = gates.set.get(name).copied().unwrap_or(*default);
            rows.with_label_values(&[*name, stage.label()]).set(i64::from(on));
        }
        rows.collect()
    }
}

/// Dependencies between gates.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("AuthorizeNodeWithSelectors", &["AuthorizeWithSelectors"]),
    ("ClusterTrustBundleProjection", &["ClusterTrustBundle"]),
    ("DRAAdminAccess", &["DynamicResourceAllocation"]),
    ("DRAConsumableCapacity", &["DynamicResourceAllocation"]),
    ("DRADeviceBindingConditions", &["DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"]),
    ("DRADeviceTaintRules", &["DRADeviceTaints"]),
    ("DRADeviceTaints", &["DynamicResourceAllocation"]),
    ("DRAExtendedResource", &["DynamicResourceAllocation"]),
    ("DRAListTypeAttributes", &["DynamicResourceAllocation"]),
    ("DRANodeAllocatableResources", &["DynamicResourceAllocation"]),
    ("DRAPartitionableDevices", &["DynamicResourceAllocation"]),
    ("DRAPrioritizedList", &["DynamicResourceAllocation"]),
    (
        "DRAResourceClaimGranularStatusAuthorization",
        &["DynamicResourceAllocation", "DRAResourceClaimDeviceStatus"],
    ),
    ("DRAResourcePoolStatus", &["DynamicResourceAllocation"]),
    ("DRASchedulerFilterTimeout", &["DynamicResourceAllocation"]),
    ("DRAWorkloadResourceClaims", &["DynamicResourceAllocation", "GenericWorkload"]),
    ("DeclarativeValidationBeta", &["DeclarativeValidation"]),
    ("DeclarativeValidationTakeover", &["DeclarativeValidation"]),
    ("DisableAllocatorDualWrite", &["MultiCIDRServiceAllocator"]),
    ("ExtendWebSocketsToKubelet", &["NodeDeclaredFeatures"]),
    ("GangScheduling", &["GenericWorkload"]),
    ("GracefulNodeShutdownBasedOnPodPriority", &["GracefulNodeShutdown"]),
    ("ImageVolumeWithDigest", &["ImageVolume"]),
    (
        "InPlacePodLevelResourcesVerticalScaling",
        &["InPlacePodVerticalScaling", "PodLevelResources", "NodeDeclaredFeatures"],
    ),
    ("InPlacePodVerticalScalingExclusiveCPUs", &["InPlacePodVerticalScaling"]),
    ("InPlacePodVerticalScalingExclusiveMemory", &["InPlacePodVerticalScaling"]),
    ("InPlacePodVerticalScalingInitContainers", &["InPlacePodVerticalScaling", "NodeDeclaredFeatures"]),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", &["MatchLabelKeysInPodTopologySpread"]),
    ("PodCertificateRequest", &["AuthorizeNodeWithSelectors"]),
    ("PodLevelResourceManagers", &["PodLevelResources"]),
    ("PodLifecycleSleepActionAllowZero", &["PodLifecycleSleepAction"]),
    ("ProcMountType", &["UserNamespacesSupport"]),
    ("ResourceHealthStatus", &["DynamicResourceAllocation"]),
    ("ResourceHealthStatusMessage", &["ResourceHealthStatus"]),
    ("RestartAllContainersOnContainerExits", &["ContainerRestartRules", "NodeDeclaredFeatures"]),
    ("ServiceAccountTokenNodeBinding", &["ServiceAccountTokenNodeBindingValidation"]),
    ("StorageVersionAPI", &["APIServerIdentity"]),
    ("StructuredAuthenticationConfigurationEgressSelector", &["StructuredAuthenticationConfiguration"]),
    ("StructuredAuthenticationConfigurationJWKSMetrics", &["StructuredAuthenticationConfiguration"]),
    ("TopologyAwareWorkloadScheduling", &["GenericWorkload"]),
    ("UnknownVersionInteroperabilityProxy", &["APIServerIdentity"]),
    ("UserNamespacesHostNetworkSupport", &["UserNamespacesSupport", "NodeDeclaredFeatures"]),
    ("WindowsGracefulNodeShutdown", &["GracefulNodeShutdown"]),
    ("WorkloadAwarePreemption", &["GangScheduling"]),
    ("WorkloadWithJob", &["GenericWorkload"]),
];

/// Name, stage, default, and whether the default is the only value.
pub const GATES: &[(&str, Stage, bool, bool)] = &[
    ("APIResponseCompression", Beta, true, false),
    ("APIServerIdentity", Beta, true, false),
    ("APIServerTracing", GA, true, true),
    ("APIServingWithRoutine", Alpha, false, false),
    ("AggregatedDiscoveryRemoveBetaType", Deprecated, true, true),
    ("AllowDNSOnlyNodeCSR", Deprecated, false, false),
    ("AllowInsecureKubeletCertificateSigningRequests", Deprecated, false, false),
    ("AllowOverwriteTerminationGracePeriodSeconds", Deprecated, false, true),
    ("AllowParsingUserUIDFromCertAuth", Beta, true, false),
    ("AllowServiceExternalIPs", GA, true, false),
    ("AllowUnsafeMalformedObjectDeletion", Alpha, false, false),
    ("AnonymousAuthConfigurableEndpoints", GA, true, true),
    ("AnyVolumeDataSource", GA, true, true),
    ("AuthorizeNodeWithSelectors", GA, true, true),
    ("AuthorizePodWebsocketUpgradeCreatePermission", Beta, true, false),
    ("AuthorizeWithSelectors", GA, true, true),
    ("BtreeWatchCache", GA, true, true),
    ("CBORServingAndStorage", Alpha, false, false),
    ("CPUManagerPolicyAlphaOptions", Alpha, false, false),
    ("CPUManagerPolicyBetaOptions", Beta, true, false),
    ("CPUManagerPolicyOptions", GA, true, true),
    ("CRDObservedGenerationTracking", Beta, true, false),
    ("CRDValidationRatcheting", GA, true, true),
    ("CRIListStreaming", Alpha, false, false),
    ("CSIServiceAccountTokenSecrets", GA, true, true),
    ("CSIVolumeHealth", Alpha, false, false),
    ("ChangeContainerStatusOnKubeletRestart", Deprecated, false, false),
    ("ClearingNominatedNodeNameAfterBinding", Beta, true, false),
    ("CloudControllerManagerWatchBasedRoutesReconciliation", Alpha, false, false),
    ("CloudControllerManagerWebhook", Alpha, false, false),
    ("ClusterTrustBundle", Beta, false, false),
    ("ClusterTrustBundleProjection", Beta, false, false),
    ("ComponentFlagz", Beta, true, false),
    ("ComponentStatusz", Beta, true, false),
    ("ConcurrentWatchObjectDecode", Beta, false, false),
    ("ConsistentListFromCache", GA, true, true),
    ("ConstrainedImpersonation", Beta, true, false),
    ("ContainerCheckpoint", Beta, true, false),
    ("ContainerRestartRules", Beta, true, false),
    ("ContainerStopSignals", Alpha, false, false),
    ("ContextualLogging", Beta, true, false),
    ("ControllerManagerReleaseLeaderElectionLockOnExit", Alpha, false, false),
    ("CoordinatedLeaderElection", Beta, false, false),
    ("CrossNamespaceVolumeDataSource", Alpha, false, false),
    ("CustomCPUCFSQuotaPeriod", GA, true, false),
    ("CustomResourceFieldSelectors", GA, true, true),
    ("DRAAdminAccess", GA, true, true),
    ("DRAConsumableCapacity", Beta, true, false),
    ("DRADeviceBindingConditions", Beta, true, false),
    ("DRADeviceTaintRules", Beta, false, false),
    ("DRADeviceTaints", Beta, true, false),
    ("DRAExtendedResource", Beta, true, false),
    ("DRAListTypeAttributes", Alpha, false, false),
    ("DRANodeAllocatableResources", Alpha, false, false),
    ("DRAPartitionableDevices", Beta, true, false),
    ("DRAPrioritizedList", GA, true, false),
    ("DRAResourceClaimDeviceStatus", Beta, true, false),
    ("DRAResourceClaimGranularStatusAuthorization", Beta, true, false),
    ("DRAResourcePoolStatus", Alpha, false, false),
    ("DRASchedulerFilterTimeout", Beta, true, false),
    ("DRAWorkloadResourceClaims", Alpha, false, false),
    ("DeclarativeValidation", GA, true, true),
    ("DeclarativeValidationBeta", Beta, true, false),
    ("DeclarativeValidationTakeover", Deprecated, false, false),
    ("DeploymentReplicaSetTerminatingReplicas", Beta, true, false),
    ("DetectCacheInconsistency", Beta, true, false),
    ("DisableAllocatorDualWrite", GA, true, true),
    ("DisableCPUQuotaWithExclusiveCPUs", Deprecated, true, false),
    ("DisableNodeKubeProxyVersion", Deprecated, true, true),
    ("DynamicResourceAllocation", GA, true, true),
    ("EnvFiles", Beta, true, false),
    ("EventedPLEG", Alpha, false, false),
    ("ExecProbeTimeout", GA, true, true),
    ("ExtendWebSocketsToKubelet", Beta, true, false),
    ("ExternalServiceAccountTokenSigner", GA, true, true),
    ("GangScheduling", Alpha, false, false),
    ("GenericWorkload", Alpha, false, false),
    ("GitRepoVolumeDriver", Deprecated, false, true),
    ("GracefulNodeShutdown", Beta, true, false),
    ("GracefulNodeShutdownBasedOnPodPriority", Beta, true, false),
    ("HPAConfigurableTolerance", Beta, true, false),
    ("HPAScaleToZero", Alpha, false, false),
    ("HostnameOverride", Beta, true, false),
    ("ImageMaximumGCAge", GA, true, true),
    ("ImageVolume", GA, true, true),
    ("ImageVolumeWithDigest", Alpha, false, false),
    ("InPlacePodLevelResourcesVerticalScaling", Beta, true, false),
    ("InPlacePodVerticalScaling", GA, true, true),
    ("InPlacePodVerticalScalingExclusiveCPUs", Alpha, false, false),
    ("InPlacePodVerticalScalingExclusiveMemory", Alpha, false, false),
    ("InPlacePodVerticalScalingInitContainers", Beta, true, false),
    ("JobBackoffLimitPerIndex", GA, true, true),
    ("JobManagedBy", GA, true, true),
    ("JobPodReplacementPolicy", GA, true, true),
    ("JobSuccessPolicy", GA, true, true),
    ("KMSv1", Deprecated, false, false),
    ("KubeletCgroupDriverFromCRI", GA, true, true),
    ("KubeletCrashLoopBackOffMax", Beta, true, false),
    ("KubeletEnsureSecretPulledImages", Beta, true, false),
    ("KubeletFineGrainedAuthz", GA, true, true),
    ("KubeletInUserNamespace", Alpha, false, false),
    ("KubeletPSI", GA, true, true),
    ("KubeletPodResourcesDynamicResources", GA, true, true),
    ("KubeletPodResourcesGet", GA, true, true),
    ("KubeletPodResourcesListUseActivePods", Deprecated, true, false),
    ("KubeletRegistrationGetOnExistsOnly", Deprecated, false, false),
    ("KubeletSeparateDiskGC", Beta, true, false),
    ("KubeletServiceAccountTokenForCredentialProviders", Beta, true, false),
    ("KubeletTracing", GA, true, true),
    ("ListFromCacheSnapshot", Beta, true, false),
    ("LocalStorageCapacityIsolationFSQuotaMonitoring", Beta, false, false),
    ("LogarithmicScaleDown", GA, true, true),
    ("LoggingAlphaOptions", Alpha, false, false),
    ("LoggingBetaOptions", Beta, true, false),
    ("ManifestBasedAdmissionControlConfig", Alpha, false, false),
    ("MatchLabelKeysInPodAffinity", GA, true, true),
    ("MatchLabelKeysInPodTopologySpread", Beta, true, false),
    ("MatchLabelKeysInPodTopologySpreadSelectorMerge", Beta, true, false),
    ("MaxUnavailableStatefulSet", Beta, false, false),
    ("MemoryQoS", Alpha, false, false),
    ("MultiCIDRServiceAllocator", GA, true, true),
    ("MutableCSINodeAllocatableCount", GA, true, true),
    ("MutablePVNodeAffinity", Alpha, false, false),
    ("MutablePodResourcesForSuspendedJobs", Beta, true, false),
    ("MutableSchedulingDirectivesForSuspendedJobs", Beta, true, false),
    ("MutatingAdmissionPolicy", GA, true, false),
    ("NFTablesProxyMode", GA, true, true),
    ("NativeHistograms", Alpha, false, false),
    ("NodeDeclaredFeatures", Beta, true, false),
    ("NodeInclusionPolicyInPodTopologySpread", GA, true, true),
    ("NodeLogQuery", GA, true, true),
    ("NodeSwap", GA, true, true),
    ("NominatedNodeNameForExpectation", Beta, true, false),
    ("OpenAPIEnums", Beta, true, false),
    ("OpportunisticBatching", Beta, true, false),
    ("OrderedNamespaceDeletion", GA, true, true),
    ("PLEGOnDemandRelist", Beta, true, false),
    ("PersistentVolumeClaimUnusedSinceTime", Alpha, false, false),
    ("PodAndContainerStatsFromCRI", Alpha, false, false),
    ("PodCertificateRequest", Beta, false, false),
    ("PodDeletionCost", Beta, true, false),
    ("PodLevelResourceManagers", Alpha, false, false),
    ("PodLevelResources", Beta, true, false),
    ("PodLifecycleSleepAction", GA, true, true),
    ("PodLifecycleSleepActionAllowZero", GA, true, true),
    ("PodLogsQuerySplitStreams", Alpha, false, false),
    ("PodObservedGenerationTracking", GA, true, true),
    ("PodReadyToStartContainersCondition", Beta, true, false),
    ("PodSchedulingReadiness", GA, true, true),
    ("PodTopologyLabelsAdmission", Beta, true, false),
    ("PodsAPI", Alpha, false, false),
    ("PortForwardWebsockets", Beta, true, false),
    ("PreferSameTrafficDistribution", GA, true, true),
    ("PreventStaticPodAPIReferences", Beta, true, false),
    ("ProcMountType", GA, true, true),
    ("QOSReserved", Alpha, false, false),
    ("RecoverVolumeExpansionFailure", GA, true, true),
    ("RecursiveReadOnlyMounts", GA, true, true),
    ("ReduceDefaultCrashLoopBackOffDecay", Alpha, false, false),
    ("RelaxedDNSSearchValidation", GA, true, true),
    ("RelaxedEnvironmentVariableValidation", GA, true, true),
    ("RelaxedServiceNameValidation", Beta, true, false),
    ("ReloadKubeletClientCAFile", Beta, true, false),
    ("ReloadKubeletServerCertificateFile", Beta, true, false),
    ("RemoteRequestHeaderUID", Beta, true, false),
    ("ResilientWatchCacheInitialization", GA, true, true),
    ("ResourceHealthStatus", Beta, true, false),
    ("ResourceHealthStatusMessage", Beta, true, false),
    ("RestartAllContainersOnContainerExits", Beta, true, false),
    ("RetryGenerateName", GA, true, true),
    ("RotateKubeletServerCertificate", Beta, true, false),
    ("RuntimeClassInImageCriApi", Alpha, false, false),
    ("SELinuxChangePolicy", GA, true, true),
    ("SELinuxMount", Beta, false, false),
    ("SELinuxMountReadWriteOncePod", GA, true, true),
    ("SchedulerAsyncAPICalls", Beta, false, false),
    ("SchedulerAsyncPreemption", Beta, true, false),
    ("SchedulerPopFromBackoffQ", Beta, true, false),
    ("SchedulerQueueingHints", GA, true, true),
    ("SeparateCacheWatchRPC", Deprecated, false, true),
    ("SeparateTaintEvictionController", GA, true, true),
    ("ServiceAccountNodeAudienceRestriction", Beta, true, false),
    ("ServiceAccountTokenJTI", GA, true, true),
    ("ServiceAccountTokenNodeBinding", GA, true, true),
    ("ServiceAccountTokenNodeBindingValidation", GA, true, true),
    ("ServiceAccountTokenPodNodeInfo", GA, true, true),
    ("ServiceCIDRStatusFieldWiping", Deprecated, true, false),
    ("ShardedListAndWatch", Alpha, false, false),
    ("SidecarContainers", GA, true, true),
    ("SizeBasedListCostEstimate", Beta, true, false),
    ("StaleControllerConsistencyDaemonSet", Beta, true, false),
    ("StaleControllerConsistencyJob", Beta, true, false),
    ("StaleControllerConsistencyReplicaSet", Beta, true, false),
    ("StaleControllerConsistencyStatefulSet", Beta, true, false),
    ("StatefulSetSemanticRevisionComparison", Beta, true, false),
    ("StorageCapacityScoring", Alpha, false, false),
    ("StorageNamespaceIndex", Deprecated, true, false),
    ("StorageVersionAPI", Alpha, false, false),
    ("StorageVersionHash", Beta, true, false),
    ("StorageVersionMigrator", Beta, false, false),
    ("StreamingCollectionEncodingToJSON", GA, true, true),
    ("StreamingCollectionEncodingToProtobuf", GA, true, true),
    ("StrictIPCIDRValidation", Beta, true, false),
    ("StructuredAuthenticationConfiguration", GA, true, true),
    ("StructuredAuthenticationConfigurationEgressSelector", Beta, true, false),
    ("StructuredAuthenticationConfigurationJWKSMetrics", Beta, true, false),
    ("SupplementalGroupsPolicy", GA, true, true),
    ("SystemdWatchdog", GA, true, true),
    ("TaintTolerationComparisonOperators", Alpha, false, false),
    ("TokenRequestServiceAccountUIDValidation", Beta, true, false),
    ("TopologyAwareWorkloadScheduling", Alpha, false, false),
    ("TopologyManagerPolicyAlphaOptions", Alpha, false, false),
    ("TopologyManagerPolicyBetaOptions", Beta, true, false),
    ("TopologyManagerPolicyOptions", GA, true, true),
    ("TranslateStreamCloseWebsocketRequests", Beta, true, false),
    ("UnauthenticatedHTTP2DOSMitigation", Beta, true, false),
    ("UnknownVersionInteroperabilityProxy", Beta, true, false),
    ("UserNamespacesHostNetworkSupport", Alpha, false, false),
    ("UserNamespacesSupport", GA, true, true),
    ("VolumeAttributesClass", GA, true, true),
    ("VolumeLimitScaling", Alpha, false, false),
    ("WatchCacheInitializationPostStartHook", Beta, true, false),
    ("WatchList", Beta, true, false),
    ("WinDSR", GA, true, true),
    ("WinOverlay", GA, true, true),
    ("WindowsCPUAndMemoryAffinity", Alpha, false, false),
    ("WindowsGracefulNodeShutdown", Beta, true, false),
    ("WindowsHostNetwork", Deprecated, false, false),
    ("WorkloadAwarePreemption", Alpha, false, false),
    ("WorkloadWithJob", Alpha, false, false),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_sorted_and_consistent() {
        assert!(GATES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let known = |name: &str| GATES.iter().any(|row| row.0 == name);
        assert!(SWITCHED.iter().all(|name| known(name)));
        assert!(
            DEPENDENCIES.iter().all(|(name, needed)| known(name) && needed.iter().all(|name| known(name)))
        );
        assert_eq!(FeatureGates::new([]), Ok(FeatureGates::default()));
    }

    #[test]
    fn invalid_gates_have_the_errors_of_kubernetes() {
        for (text, want) in [
            ("Nonsense=true", "unrecognized feature gate: Nonsense"),
            ("WatchList", "missing bool value for WatchList"),
            (
                "WatchList=maybe",
                "invalid value of WatchList=maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            (
                "SidecarContainers=false",
                "cannot set feature gate SidecarContainers to false, feature is locked to true",
            ),
        ] {
            assert_eq!(FeatureGates::parse(text.split(',')).expect_err(text).to_string(), want);
        }
    }

    #[test]
    fn changed_gates_without_a_switch_are_named() {
        let gates =
            FeatureGates::parse(["WatchList=false", "CBORServingAndStorage=true", "SidecarContainers=true"]);
        let gates = gates.expect("valid");
        assert_eq!(gates.without_effect(), ["WatchList=false"]);
        assert!(gates.enabled("CBORServingAndStorage") && !gates.enabled("WatchList"));
        assert!(gates.enabled("SidecarContainers") && !gates.enabled("Nonsense"));
    }

    #[test]
    fn all_alpha_leaves_gates_that_are_set() {
        let gates = FeatureGates::parse(["AllAlpha=true", "CBORServingAndStorage=false"]).expect("valid");
        assert!(!gates.enabled("CBORServingAndStorage"));
        let alpha = GATES.iter().filter(|row| row.1 == Alpha && !row.3);
        assert!(alpha.filter(|row| row.0 != "CBORServingAndStorage").all(|row| gates.enabled(row.0)));
    }

    #[test]
    fn metric_has_a_row_for_every_gate() {
        let families = FeatureCollector::new().expect("a metric").collect();
        assert_eq!(families[0].get_metric().len(), GATES.len());
    }
}
