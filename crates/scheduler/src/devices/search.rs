//! Depth-first search for devices, with backtracking and an explicit stack.
//!
//! Claims are satisfied one after the other, then the requests of each claim, then the devices of each request. Devices
//! of one request are chosen in increasing order, so that each combination is tried once. The first solution is taken.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

use expressions::{Value, device};
use objects::resource::v1::{Device, DeviceClass, DeviceSelector, ResourceClaim};

use super::RESULTS_MAX;
use super::allocator::{AllocationError, Allocator, Target};
use super::capacity;
use super::constraint::Constraint;
use super::counters::Counters;
use super::pools::{Pool, PoolState};
use super::request::{RequestView, key};
use super::selector;
use super::slices::IndexedSlice;
use super::usage::{Consumed, DeviceUsage};

/// Steps between two looks at the clock.
const STEPS_PER_CHECK: u32 = 256;

/// A device that may be chosen. All of them are in usable pools and accessible from the node.
pub struct Candidate<'s> {
    pub pool: usize,
    pub slice: &'s IndexedSlice,
    pub device: &'s Device,
    usage: Option<&'s DeviceUsage>,
    /// Value in expressions, built on first use.
    value: OnceCell<Result<Value<'s>, String>>,
}

/// A request or an alternative of one, after its checks.
pub struct Alternative<'s> {
    pub view: RequestView<'s>,
    pub class: &'s DeviceClass,
    pub claim: &'s ResourceClaim,
    /// Index of its set of selectors.
    pub selectors: usize,
    pub devices: usize,
    /// The devices of a request for all of them.
    pub all: Option<Vec<usize>>,
}

/// Requests of a claim: indexes of their alternatives, and whether they are a prioritized list.
#[derive(Default)]
pub struct ClaimRequests(Vec<(Vec<usize>, bool)>);

impl ClaimRequests {
    pub fn push(&mut self, alternatives: Vec<usize>, is_list: bool) {
        self.0.push((alternatives, is_list));
    }
}

/// A chosen device.
pub struct Chosen {
    pub candidate: usize,
    pub alternative: usize,
    /// Capacity that it consumes of a device that allows multiple allocations.
    pub consumed: Option<Consumed>,
}

struct Claim<'s> {
    requests: ClaimRequests,
    constraints: Vec<Constraint<'s>>,
    chosen: Vec<Chosen>,
}

/// Device of a request to choose next.
#[derive(Clone, Copy)]
struct Position {
    claim: usize,
    request: usize,
    /// Index of the alternative; `None` if it is still to be chosen.
    alternative: Option<usize>,
    /// Number of devices chosen for the alternative.
    count: usize,
    /// First candidate.
    start: usize,
}

impl Position {
    fn of(claim: usize, request: usize) -> Self {
        Self { claim, request, alternative: None, count: 0, start: 0 }
    }
}

/// Decision that may have to be changed.
enum Frame {
    /// The alternative before `next` of a prioritized list.
    Choice {
        claim: usize,
        request: usize,
        next: usize,
        all_exceeded: bool,
    },
    Device {
        at: Position,
        candidate: usize,
        has_counters: bool,
    },
}

enum Step {
    Enter(Position),
    Solved,
    /// No solution after the last frame.
    Failed,
    /// The claim would have more than [`RESULTS_MAX`] devices.
    Exceeded(usize),
}

/// Distinct selectors of classes and requests.
#[derive(Default)]
struct SelectorSets<'s> {
    sets: Vec<(&'s DeviceClass, &'s [DeviceSelector])>,
    indexes: HashMap<(&'s str, Vec<&'s str>), usize>,
}

pub struct Search<'s> {
    allocator: &'s Allocator<'s>,
    pools: &'s [Pool<'s>],
    pub candidates: Vec<Candidate<'s>>,
    pub alternatives: Vec<Alternative<'s>>,
    claims: Vec<Claim<'s>>,
    selector_sets: SelectorSets<'s>,
    /// Verdict of a set of selectors about a candidate.
    verdicts: HashMap<(usize, usize), bool>,
    /// Number of claims for which each candidate is chosen exclusively, and the pairs.
    chosen: Vec<u32>,
    chosen_for: HashSet<(usize, usize)>,
    /// Capacity consumed by the choices, with their number.
    capacity: HashMap<usize, (u32, Consumed)>,
    counters: Counters,
    frames: Vec<Frame>,
    steps: u32,
}

impl<'s> Search<'s> {
    pub fn new(allocator: &'s Allocator<'_>, pools: &'s [Pool<'s>], node: &Target<'_>) -> Self {
        let mut candidates = Vec::new();
        for (index, pool) in pools.iter().enumerate().filter(|(_, pool)| pool.state == PoolState::Usable) {
            let used = allocator.inventory.usage.pool(pool.id);
            for slice in &pool.slices {
                let devices = slice.devices().iter().enumerate();
                let accessible = devices.filter(|(at, _)| slice.reaches(*at, node));
                candidates.extend(accessible.map(|(_, device)| Candidate {
                    pool: index,
                    slice,
                    device,
                    usage: used.and_then(|used| used.get(&*device.name)),
                    value: OnceCell::new(),
                }));
            }
        }
        Self {
            allocator,
            pools,
            chosen: vec![0; candidates.len()],
            candidates,
            alternatives: Vec::new(),
            claims: Vec::new(),
            selector_sets: SelectorSets::default(),
            verdicts: HashMap::new(),
            chosen_for: HashSet::new(),
            capacity: HashMap::new(),
            counters: Counters::default(),
            frames: Vec::new(),
            steps: 0,
        }
    }

    pub fn pools(&self) -> &'s [Pool<'s>] {
        self.pools
    }

    pub fn add_claim(&mut self, requests: ClaimRequests, constraints: Vec<Constraint<'s>>) {
        self.claims.push(Claim { requests, constraints, chosen: Vec::new() });
    }

    pub fn add_alternative(&mut self, alternative: Alternative<'s>) -> usize {
        self.alternatives.push(alternative);
        self.alternatives.len() - 1
    }

    /// Devices chosen for a claim.
    pub fn chosen(&self, claim: usize) -> &[Chosen] {
        self.claims.get(claim).map_or(&[], |claim| &claim.chosen)
    }

    /// Alternative of each request of a claim that the solution satisfies.
    pub fn selected(&self, claim: usize) -> Vec<&Alternative<'s>> {
        let Some(requests) = self.claims.get(claim).map(|claim| &claim.requests.0) else { return Vec::new() };
        let choice = |request: usize| {
            self.frames.iter().find_map(|frame| match frame {
                Frame::Choice { claim: of, request: own, next, .. } if (*of, *own) == (claim, request) => {
                    next.checked_sub(1)
                }
                _ => None,
            })
        };
        let selected = requests.iter().enumerate().filter_map(|(at, (alternatives, is_list))| {
            let index = if *is_list { choice(at)? } else { 0 };
            self.alternatives.get(*alternatives.get(index)?)
        });
        selected.collect()
    }

    /// Reports whether there is a solution.
    pub fn run(&mut self) -> Result<bool, AllocationError> {
        let mut step = Step::Enter(Position::of(0, 0));
        loop {
            step = match step {
                Step::Enter(at) => self.enter(at)?,
                Step::Solved => return Ok(true),
                Step::Failed | Step::Exceeded(_) => match self.frames.pop() {
                    Some(frame) => self.resume(frame, &step)?,
                    None if matches!(step, Step::Exceeded(0)) => {
                        return Err(AllocationError::Claim("allocation max size exceeded".to_owned()));
                    }
                    None => return Ok(false),
                },
            };
        }
    }

    fn enter(&mut self, mut at: Position) -> Result<Step, AllocationError> {
        self.check_deadline()?;
        loop {
            let Some(claim) = self.claims.get(at.claim) else { return Ok(Step::Solved) };
            let Some((alternatives, is_list)) = claim.requests.0.get(at.request) else {
                at = Position::of(at.claim + 1, 0);
                continue;
            };
            let index = match at.alternative {
                Some(index) => index,
                None if *is_list => {
                    let (claim, request) = (at.claim, at.request);
                    let choice = Frame::Choice { claim, request, next: 0, all_exceeded: true };
                    return self.resume(choice, &Step::Exceeded(claim));
                }
                None => alternatives.first().copied().unwrap_or_default(),
            };
            at.alternative = Some(index);
            let Some(alternative) = self.alternatives.get(index) else { return Ok(Step::Failed) };
            if alternative.all.as_ref().is_some_and(Vec::is_empty) {
                return Ok(Step::Failed);
            }
            if at.count >= alternative.devices {
                at = Position::of(at.claim, at.request + 1);
                continue;
            }
            let missing = alternative.devices - at.count;
            if claim.chosen.len().saturating_add(missing) > RESULTS_MAX {
                return Ok(Step::Exceeded(at.claim));
            }
            return self.choose(at, index);
        }
    }

    /// Chooses the next device of an alternative.
    fn choose(&mut self, at: Position, index: usize) -> Result<Step, AllocationError> {
        let Some(alternative) = self.alternatives.get(index) else { return Ok(Step::Failed) };
        if let Some(all) = &alternative.all {
            // All of them are needed, so no other order can succeed.
            let Some(candidate) = all.get(at.count).copied() else { return Ok(Step::Failed) };
            return Ok(if self.place(at, index, candidate)? { self.next(at, 0) } else { Step::Failed });
        }
        for candidate in at.start..self.candidates.len() {
            self.check_deadline()?;
            if self.is_free(at.claim, index, candidate)
                && self.is_selected(index, candidate)?
                && self.has_capacity(index, candidate)
                && self.place(at, index, candidate)?
            {
                return Ok(self.next(at, candidate + 1));
            }
        }
        Ok(Step::Failed)
    }

    fn next(&self, at: Position, start: usize) -> Step {
        Step::Enter(Position { count: at.count + 1, start, ..at })
    }

    /// Changes the last decision, because nothing that follows it succeeded.
    fn resume(&mut self, frame: Frame, outcome: &Step) -> Result<Step, AllocationError> {
        match frame {
            Frame::Choice { claim, request, next, all_exceeded } => {
                let all_exceeded = all_exceeded && matches!(outcome, Step::Exceeded(of) if *of == claim);
                let alternatives = self.claims.get(claim).and_then(|claim| claim.requests.0.get(request));
                match alternatives.and_then(|(alternatives, _)| alternatives.get(next).copied()) {
                    Some(index) => {
                        self.frames.push(Frame::Choice { claim, request, next: next + 1, all_exceeded });
                        Ok(Step::Enter(Position { alternative: Some(index), ..Position::of(claim, request) }))
                    }
                    None => Ok(if all_exceeded { Step::Exceeded(claim) } else { Step::Failed }),
                }
            }
            Frame::Device { at, candidate, has_counters } => {
                self.remove(at, candidate, has_counters);
                let index = at.alternative.unwrap_or_default();
                let is_all = self.alternatives.get(index).is_some_and(|own| own.all.is_some());
                match outcome {
                    Step::Exceeded(of) if *of == at.claim => Ok(Step::Exceeded(at.claim)),
                    _ if is_all => Ok(Step::Failed),
                    _ => self.choose(Position { start: candidate + 1, ..at }, index),
                }
            }
        }
    }

    fn check_deadline(&mut self) -> Result<(), AllocationError> {
        self.steps = self.steps.wrapping_add(1);
        if self.steps.is_multiple_of(STEPS_PER_CHECK) { self.allocator.time_left() } else { Ok(()) }
    }
}

/// Checks of one candidate.
impl<'s> Search<'s> {
    fn is_free(&self, claim: usize, index: usize, candidate: usize) -> bool {
        if self.alternatives[index].view.has_admin_access {
            return !self.chosen_for.contains(&(candidate, claim));
        }
        let is_used = self.candidates[candidate].usage.is_some_and(|usage| usage.exclusive > 0);
        !is_used && self.chosen[candidate] == 0
    }

    fn has_capacity(&self, index: usize, candidate: usize) -> bool {
        let own = &self.candidates[candidate];
        let used = own.usage.map(|usage| &usage.capacity);
        let chosen = self.capacity.get(&candidate).map(|(_, consumed)| consumed);
        let requested = self.alternatives[index].view.capacity;
        capacity::fits(own.device.capacity.as_ref(), requested, &[used, chosen])
    }

    /// Index of the set of selectors of a class and a request.
    pub fn selector_set(&mut self, class: &'s DeviceClass, view: &RequestView<'s>) -> usize {
        let sets = &mut self.selector_sets;
        let expressions = view.selectors.iter().filter_map(|selector| selector.cel.as_ref());
        let expressions: Vec<&str> = expressions.map(|cel| cel.expression.as_str()).collect();
        *sets.indexes.entry((view.class, expressions)).or_insert_with(|| {
            sets.sets.push((class, view.selectors));
            sets.sets.len() - 1
        })
    }

    /// Candidates that a request for all devices selects.
    pub fn all_devices(&mut self, alternative: &Alternative<'s>) -> Result<Vec<usize>, AllocationError> {
        let mut all = Vec::new();
        for candidate in 0..self.candidates.len() {
            self.check_deadline()?;
            let device = self.candidates[candidate].device;
            if self.matches(alternative.selectors, alternative.claim, candidate)?
                && capacity::fits(
                    device.capacity.as_ref(),
                    alternative.view.capacity,
                    &[self.candidates[candidate].usage.map(|usage| &usage.capacity)],
                )
            {
                all.push(candidate);
            }
        }
        Ok(all)
    }

    fn is_selected(&mut self, index: usize, candidate: usize) -> Result<bool, AllocationError> {
        let alternative = &self.alternatives[index];
        let (selectors, claim) = (alternative.selectors, alternative.claim);
        self.matches(selectors, claim, candidate)
    }

    fn matches(
        &mut self,
        set: usize,
        claim: &ResourceClaim,
        candidate: usize,
    ) -> Result<bool, AllocationError> {
        let (class, own) = self.selector_sets.sets[set];
        let of_class = class.spec.selectors.as_deref().unwrap_or_default();
        if of_class.is_empty() && own.is_empty() {
            return Ok(true);
        }
        if let Some(verdict) = self.verdicts.get(&(set, candidate)) {
            return Ok(*verdict);
        }
        let name = class.metadata.name.as_deref().unwrap_or_default();
        let verdict = self.evaluate(of_class, candidate, &|| format!("class {name}"))?
            && self.evaluate(own, candidate, &|| format!("claim {}", key(claim)))?;
        self.verdicts.insert((set, candidate), verdict);
        Ok(verdict)
    }

    fn evaluate(
        &self,
        selectors: &[DeviceSelector],
        candidate: usize,
        owner: &dyn Fn() -> String,
    ) -> Result<bool, AllocationError> {
        let candidate = &self.candidates[candidate];
        for (index, selector) in selectors.iter().enumerate() {
            let failed = |kind: &str, error: &str| {
                AllocationError::Claim(format!("{}: selector #{index}: CEL {kind} error: {error}", owner()))
            };
            // One evaluation is bounded by its cost.
            self.allocator.time_left()?;
            let expression = selector.cel.as_ref().map_or("", |cel| cel.expression.as_str());
            let program =
                self.allocator.selectors.program(expression).map_err(|error| failed("compile", &error))?;
            let driver = candidate.slice.slice.spec.driver.as_str();
            let value = candidate.value.get_or_init(|| selector::value(driver, candidate.device));
            let value = value.as_ref().map_err(|error| failed("runtime", error))?;
            if !device::matches(&program, value).map_err(|error| failed("runtime", &error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Choice of one candidate, and its reversal.
impl<'s> Search<'s> {
    /// Chooses a candidate that the selectors match, if its use and the constraints allow that.
    fn place(&mut self, at: Position, index: usize, candidate: usize) -> Result<bool, AllocationError> {
        let (view, is_all, owner) = {
            let alternative = &self.alternatives[index];
            (alternative.view, alternative.all.is_some(), alternative.claim)
        };
        let own = &self.candidates[candidate];
        let (device, pool, driver) = (own.device, own.pool, own.slice.slice.spec.driver.as_str());
        let is_shared = device.allow_multiple_allocations == Some(true);
        let is_free =
            if is_shared && view.has_admin_access { true } else { self.is_free(at.claim, index, candidate) };
        let taints = device.taints.as_deref().unwrap_or_default();
        if !is_free || !view.tolerates_all(taints) || !self.has_capacity(index, candidate) {
            return Ok(false);
        }
        // Shares of a device consume its counters together.
        let is_consuming = device.consumes_counters.as_ref().is_some_and(|counters| !counters.is_empty());
        let has_share =
            own.usage.is_some_and(|usage| usage.shares > 0) || self.capacity.contains_key(&candidate);
        let has_counters = is_consuming && !(is_shared && has_share);
        if has_counters {
            let (available, usage) = (&self.allocator.available, &self.allocator.inventory.usage);
            if !self.counters.consume(pool, &self.pools[pool], device, available, usage) {
                return Ok(false);
            }
        }
        let claim = &mut self.claims[at.claim];
        let added = claim.constraints.iter_mut().position(|own| !own.add(&view, driver, device));
        if let Some(violated) = added {
            claim.constraints[..violated].iter_mut().rev().for_each(|own| own.remove_last(&view));
            if has_counters {
                self.counters.release(pool, device);
            }
            if is_all {
                return Err(AllocationError::Claim(format!(
                    "claim {}, request {}: cannot add device {}/{} because a claim constraint would not be satisfied",
                    key(owner),
                    view.name,
                    self.pools[pool].id,
                    device.name
                )));
            }
            return Ok(false);
        }
        let mut consumed = None;
        if is_shared {
            let amounts = capacity::consumption(device.capacity.as_ref(), view.capacity);
            let (shares, total) = self.capacity.entry(candidate).or_default();
            *shares += 1;
            for (name, amount) in &amounts {
                *total.entry(name.clone()).or_default() += *amount;
            }
            consumed = Some(amounts);
        } else if self.chosen_for.insert((candidate, at.claim)) {
            self.chosen[candidate] += 1;
        }
        claim.chosen.push(Chosen { candidate, alternative: index, consumed });
        self.frames.push(Frame::Device { at, candidate, has_counters });
        Ok(true)
    }

    /// Reverses [`Search::place`] of the device that was chosen last.
    fn remove(&mut self, at: Position, candidate: usize, has_counters: bool) {
        let view = self.alternatives[at.alternative.unwrap_or_default()].view;
        let claim = &mut self.claims[at.claim];
        match claim.chosen.pop().and_then(|chosen| chosen.consumed) {
            Some(amounts) => {
                if let Some((shares, total)) = self.capacity.get_mut(&candidate) {
                    *shares -= 1;
                    for (name, amount) in amounts {
                        if let Some(total) = total.get_mut(&name) {
                            *total -= amount;
                        }
                    }
                    if *shares == 0 {
                        self.capacity.remove(&candidate);
                    }
                }
            }
            None => {
                if self.chosen_for.remove(&(candidate, at.claim)) {
                    self.chosen[candidate] -= 1;
                }
            }
        }
        claim.constraints.iter_mut().rev().for_each(|own| own.remove_last(&view));
        if has_counters {
            self.counters.release(self.candidates[candidate].pool, self.candidates[candidate].device);
        }
    }
}
