//! Active configuration: schemas with their priority levels, and the seats of each level.

use super::allocation::{Claim, allocate};
use super::level::{Distinguisher, Level, Limits, RequestDescription};
use super::objects::{self, CATCH_ALL, EXEMPT, FlowSchema, PolicyRules, PriorityLevel, Settings};
use super::queue_set::Discipline;
use crate::context::Context;
use http::HeaderValue;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Largest fraction of a level's seats for one request.
const MAX_SEATS_PART: f64 = 0.15;

/// An active schema.
pub struct Schema {
    pub name: Arc<str>,
    pub level: Arc<Level>,
    /// Index of the schema's statistics in its level.
    pub slot: usize,
    /// UIDs of the schema and of its level, for the response headers.
    pub uids: (HeaderValue, HeaderValue),
    /// Maximum seats of a request; zero: no bound of its own.
    pub max_seats: usize,
    distinguisher: Distinguisher,
    rules: Vec<PolicyRules>,
}

impl Schema {
    pub fn about(&self, context: &Context) -> RequestDescription {
        RequestDescription {
            user: context.user.clone(),
            info: context.info.clone(),
            path: context.path.clone(),
            distinguisher: self.distinguisher,
        }
    }
}

/// All schemas in order of precedence.
pub struct FairnessPlan {
    schemas: Vec<Schema>,
}

impl FairnessPlan {
    /// First matching schema; the last one matches every request.
    pub fn schema_of(&self, context: &Context) -> Option<&Schema> {
        let matches =
            |schema: &&Schema| objects::matches(&schema.rules, &context.user, &context.info, &context.path);
        self.schemas.iter().find(matches).or_else(|| self.schemas.last())
    }
}

/// Levels by name, and the total number of seats.
pub struct Ledger {
    pub total: usize,
    pub levels: BTreeMap<Arc<str>, Arc<Level>>,
    pub fair_fraction: f64,
}

impl Ledger {
    pub fn new(total: usize) -> Self {
        Self { total, levels: BTreeMap::new(), fair_fraction: 0.0 }
    }

    /// Applies a configuration. Invalid objects are ignored; the mandatory ones always exist.
    pub fn digest(
        &mut self,
        levels: Vec<PriorityLevel>,
        schemas: Vec<FlowSchema>,
        now: Instant,
    ) -> FairnessPlan {
        let mut wanted: BTreeMap<Arc<str>, (Settings, String)> = BTreeMap::new();
        for level in levels {
            match level.settings() {
                Some(settings) => {
                    wanted.insert(level.metadata.name.into(), (settings, level.metadata.uid));
                }
                None => tracing::warn!(
                    level = level.metadata.name,
                    "invalid priority level configuration, ignoring it"
                ),
            }
        }
        for (name, settings) in mandatory_levels() {
            wanted.entry(name.into()).or_insert((settings, String::new()));
        }
        for (name, (settings, _)) in &wanted {
            let level = self
                .levels
                .entry(name.clone())
                .or_insert_with(|| Arc::new(Level::new(name.clone(), *settings, now)));
            let mut state = level.state();
            state.settings = *settings;
            state.quiescing = false;
        }
        // Deleted levels keep their seats until their last request has ended.
        self.levels.retain(|name, level| {
            let mut state = level.state();
            state.quiescing = !wanted.contains_key(name);
            !(state.quiescing && state.is_idle())
        });
        self.divide(now);
        let uids: BTreeMap<&str, &str> =
            wanted.iter().map(|(name, (_, uid))| (&**name, uid.as_str())).collect();
        self.plan(schemas, &uids)
    }

    fn plan(&self, mut objects: Vec<FlowSchema>, uids: &BTreeMap<&str, &str>) -> FairnessPlan {
        objects.retain(|schema| uids.contains_key(schema.spec.priority_level_configuration.name.as_str()));
        objects.sort_by(|a, b| {
            let order = |schema: &FlowSchema| schema.spec.matching_precedence;
            order(a).cmp(&order(b)).then_with(|| a.metadata.name.cmp(&b.metadata.name))
        });
        let has = |name: &str| objects.iter().any(|schema| schema.metadata.name == name);
        let (has_exempt, has_catch_all) = (has(EXEMPT), has(CATCH_ALL));
        if !has_exempt {
            objects.insert(0, mandatory_schema(EXEMPT, &["system:masters"], None));
        }
        if !has_catch_all {
            let all_users = ["system:unauthenticated", "system:authenticated"];
            objects.push(mandatory_schema(CATCH_ALL, &all_users, Some("ByUser")));
        }
        let schemas = objects.into_iter().filter_map(|object| self.schema(object, uids)).collect();
        FairnessPlan { schemas }
    }

    fn schema(&self, object: FlowSchema, uids: &BTreeMap<&str, &str>) -> Option<Schema> {
        let level = self.levels.get(object.spec.priority_level_configuration.name.as_str())?.clone();
        let name: Arc<str> = object.metadata.name.into();
        let slot = level.schema_slot(&name);
        let header = |uid: &str| HeaderValue::from_str(uid).unwrap_or(HeaderValue::from_static(""));
        let (max_seats, queued) = {
            let state = level.state();
            match state.settings.discipline {
                Discipline::Queue { queues, .. } => {
                    (max_seats(&state.settings, state.limits.nominal), queues > 1)
                }
                _ => (0, false),
            }
        };
        let distinguisher = match object.spec.distinguisher_method {
            Some(method) if queued && method.kind == "ByUser" => Distinguisher::ByUser,
            Some(method) if queued && method.kind == "ByNamespace" => Distinguisher::ByNamespace,
            _ => Distinguisher::None,
        };
        let uids = (header(&object.metadata.uid), header(uids.get(&*level.name).copied().unwrap_or("")));
        Some(Schema { name, level, slot, uids, max_seats, distinguisher, rules: object.spec.rules })
    }

    /// Divides the seats by shares, and then by demand.
    fn divide(&mut self, now: Instant) {
        let shares: i64 = self.levels.values().map(|level| level.state().settings.shares).sum();
        for level in self.levels.values() {
            let mut state = level.state();
            let settings = state.settings;
            let part = |whole: usize, percent: i64| (whole as f64 * percent as f64 / 100.0).round() as usize;
            let nominal =
                (self.total as f64 * settings.shares as f64 / (shares.max(1)) as f64).ceil() as usize;
            let lendable = part(nominal, settings.lendable_percent);
            let borrowing = settings.borrowing_percent.map_or(self.total, |percent| part(nominal, percent));
            let is_new = state.limits == Limits::default();
            let current = if is_new { nominal - lendable / 2 } else { state.limits.current };
            let limits = Limits { nominal, lower: nominal - lendable, upper: nominal + borrowing, current };
            state.set_limits(now, limits, self.total / 10);
        }
        self.lend(now);
    }

    /// Moves seats from levels that do not use them to levels that could.
    pub fn lend(&mut self, now: Instant) {
        let nominal: usize = self.levels.values().map(|level| level.state().limits.nominal).sum();
        let mut left = nominal;
        let mut claims = Vec::new();
        let mut lowest = 0;
        let mut floors = Vec::new();
        let mut limited = Vec::new();
        for level in self.levels.values() {
            let mut state = level.state();
            let demand = state.demand.end_period(now);
            let limits = state.limits;
            if state.settings.discipline == Discipline::Exempt {
                let current = limits.lower.max(demand.high_watermark);
                left = left.saturating_sub(current);
                state.target = current as f64;
                state.set_limits(now, Limits { current, ..limits }, self.total / 10);
                continue;
            }
            let floor = limits.lower.max(limits.nominal.min(demand.high_watermark));
            let target = (floor as f64).max(demand.smoothed);
            state.target = target;
            lowest += limits.lower;
            floors.push(floor);
            claims.push(Claim { target, lower: floor as f64, upper: limits.upper as f64 });
            drop(state);
            limited.push(level);
        }
        let floor_sum: usize = floors.iter().sum();
        let shares = if left > floor_sum { allocate(nominal, &claims) } else { None };
        self.fair_fraction = shares.as_ref().map_or(0.0, |(_, fraction)| *fraction);
        for (at, level) in limited.into_iter().enumerate() {
            let mut state = level.state();
            let limits = state.limits;
            let current = match &shares {
                _ if left <= lowest => limits.lower,
                _ if left <= floor_sum => {
                    let part = (left - lowest) as f64 / (floor_sum - lowest) as f64;
                    limits.lower + ((floors[at] - limits.lower) as f64 * part).round() as usize
                }
                Some((shares, _)) => shares[at].round() as usize,
                None => limits.current,
            };
            state.set_limits(now, Limits { current, ..limits }, self.total / 10);
        }
    }
}

/// Maximum seats of a level for one request.
fn max_seats(settings: &Settings, nominal: usize) -> usize {
    let hand = match settings.discipline {
        Discipline::Queue { dealer, .. } => dealer.hand(),
        _ => 1,
    };
    let part = (nominal as f64 * MAX_SEATS_PART).ceil() as usize;
    part.min(nominal / hand.max(1)).max(1)
}

fn mandatory_levels() -> [(&'static str, Settings); 2] {
    let settings =
        |discipline, shares| Settings { discipline, shares, lendable_percent: 0, borrowing_percent: None };
    [(EXEMPT, settings(Discipline::Exempt, 0)), (CATCH_ALL, settings(Discipline::Reject, 5))]
}

/// Mandatory schema, active while its object is missing.
fn mandatory_schema(name: &str, groups: &[&str], distinguisher: Option<&str>) -> FlowSchema {
    let all = || vec!["*".to_owned()];
    let subject = |group: &&str| objects::Subject {
        kind: "Group".to_owned(),
        group: Some(objects::Named { name: (*group).to_owned(), ..objects::Named::default() }),
        ..objects::Subject::default()
    };
    let rule = PolicyRules {
        subjects: groups.iter().map(subject).collect(),
        resource_rules: Some(vec![objects::ResourceRule {
            verbs: all(),
            api_groups: all(),
            resources: all(),
            cluster_scope: true,
            namespaces: Some(all()),
        }]),
        non_resource_rules: Some(vec![objects::NonResourceRule { verbs: all(), urls: all() }]),
    };
    FlowSchema {
        metadata: objects::Metadata { name: name.to_owned(), uid: String::new() },
        spec: objects::FlowSchemaSpec {
            priority_level_configuration: objects::LevelReference { name: name.to_owned() },
            distinguisher_method: distinguisher
                .map(|kind| objects::DistinguisherMethod { kind: kind.to_owned() }),
            rules: vec![rule],
            ..objects::FlowSchemaSpec::default()
        },
        status: objects::FlowSchemaStatus::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::level::{Arrival, Entry};
    use super::super::turns::Turns;
    use super::super::work::Work;
    use super::*;
    use crate::request_info::RequestInfo;
    use crate::user::UserInfo;
    use serde_json::json;
    use std::time::Duration;

    /// Name, shares, lendable and borrowing percent.
    fn level(name: &str, shares: i64, lendable: i64, borrowing: Option<i64>) -> PriorityLevel {
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": format!("uid-{name}")},
            "spec": {"type": "Limited", "limited": {
                "nominalConcurrencyShares": shares, "lendablePercent": lendable, "borrowingLimitPercent": borrowing,
                "limitResponse": {"type": "Queue", "queuing": {"queues": 8, "handSize": 2, "queueLengthLimit": 50}},
            }},
        }))
        .expect("a level")
    }

    fn limits(ledger: &Ledger, name: &str) -> (usize, usize, usize, usize) {
        let limits = ledger.levels[name].state().limits;
        (limits.nominal, limits.lower, limits.upper, limits.current)
    }

    fn busy(ledger: &Ledger, name: &str, requests: usize, now: Instant) {
        let level = &ledger.levels[name];
        let slot = level.schema_slot(&"s".into());
        for flow in 0..requests {
            let about = RequestDescription {
                user: Arc::new(UserInfo::default()),
                info: Arc::new(RequestInfo::default()),
                path: "".into(),
                distinguisher: Distinguisher::None,
            };
            let arrival =
                Arrival { schema: slot, flow: flow as u64, work: Work::ONE_SEAT, about, watches: None };
            if let Entry::Waiting(_, receiver) = level.arrive(now, &Turns::new(1), arrival) {
                std::mem::forget(receiver);
            }
        }
    }

    #[test]
    fn seats_are_divided_by_shares_and_lent_by_demand() {
        let mut ledger = Ledger::new(100);
        let mut now = Instant::now();
        let levels =
            vec![level("a", 45, 50, None), level("b", 45, 50, Some(10)), level("catch-all", 10, 0, None)];
        let _ = ledger.digest(levels, Vec::new(), now);
        // No demand: lendable seats are divided in proportion to the non-lendable ones.
        assert_eq!(limits(&ledger, "a"), (45, 22, 145, 41));
        assert_eq!(limits(&ledger, "catch-all").0, 10);
        assert_eq!(limits(&ledger, EXEMPT), (0, 0, 100, 0));
        busy(&ledger, "a", 200, now);
        for _ in 0..3 {
            now += Duration::from_secs(10);
            ledger.lend(now);
        }
        // b keeps its non-lendable seats, a gets the rest.
        assert_eq!(limits(&ledger, "b").3, 22);
        assert_eq!(limits(&ledger, "catch-all").3, 10);
        assert_eq!(limits(&ledger, "a").3, 68);
        // b reclaims its own seats.
        busy(&ledger, "b", 200, now);
        now += Duration::from_secs(10);
        ledger.lend(now);
        assert_eq!((limits(&ledger, "a").3, limits(&ledger, "b").3), (45, 45));
    }

    #[test]
    fn deleted_level_remains_until_last_request_ends() {
        let now = Instant::now();
        let mut ledger = Ledger::new(100);
        let _ = ledger.digest(vec![level("a", 50, 0, None)], Vec::new(), now);
        busy(&ledger, "a", 1, now);
        let _ = ledger.digest(Vec::new(), Vec::new(), now);
        let level = ledger.levels["a"].clone();
        assert!(level.state().quiescing);
        level.leave(now, &Turns::new(1), 0);
        let _ = ledger.digest(Vec::new(), Vec::new(), now);
        assert!(!ledger.levels.contains_key("a"));
        assert_eq!(ledger.levels.len(), 2);
    }

    #[test]
    fn schemas_are_tried_by_precedence_then_by_name() {
        let schema = |name: &str, precedence: i64, level: &str| {
            let object = json!({
                "metadata": {"name": name},
                "spec": {"matchingPrecedence": precedence, "priorityLevelConfiguration": {"name": level}},
            });
            serde_json::from_value::<FlowSchema>(object).expect("a schema")
        };
        let mut ledger = Ledger::new(100);
        let schemas =
            vec![schema("b", 5, "a"), schema("z", 1, "a"), schema("a", 5, "a"), schema("lost", 1, "none")];
        let plan = ledger.digest(vec![level("a", 50, 0, None)], schemas, Instant::now());
        let names: Vec<&str> = plan.schemas.iter().map(|schema| &*schema.name).collect();
        assert_eq!(names, ["exempt", "z", "a", "b", "catch-all"]);
        assert_eq!(plan.schemas[1].uids.1, "uid-a");
        assert_eq!(plan.schemas[1].max_seats, 14);
    }
}
