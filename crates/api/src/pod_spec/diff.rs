//! Unified line diff of two texts with three lines of context.
//!
//! The matching follows the longest-common-block rule of Python's difflib, in which frequent lines of long texts are
//! no anchors: messages must show the same hunks.

use std::collections::HashMap;

const CONTEXT: usize = 3;

/// Diff of `old` and `new`; empty if they are equal.
pub fn unified(old: &str, new: &str) -> String {
    let (old, new) = (lines(old), lines(new));
    let mut out = String::new();
    for group in Matcher::new(&old, &new).groups() {
        let (first, last) = (group[0], group[group.len() - 1]);
        let (old_range, new_range) = (range(first.old.0, last.old.1), range(first.new.0, last.new.1));
        out.push_str(&format!("@@ -{old_range} +{new_range} @@\n"));
        for step in group {
            if step.equal {
                put(&mut out, ' ', &old[step.old.0..step.old.1]);
            } else {
                put(&mut out, '-', &old[step.old.0..step.old.1]);
                put(&mut out, '+', &new[step.new.0..step.new.1]);
            }
        }
    }
    out
}

fn lines(text: &str) -> Vec<&str> {
    text.split('\n').collect()
}

fn put(out: &mut String, sign: char, lines: &[&str]) {
    for line in lines {
        out.push(sign);
        out.push_str(line);
        out.push('\n');
    }
}

/// Start and length, counted from one; a length of one is omitted.
fn range(start: usize, end: usize) -> String {
    match end - start {
        0 => format!("{start},0"),
        1 => format!("{}", start + 1),
        length => format!("{},{length}", start + 1),
    }
}

/// A block of both texts that is equal, or differs as a whole. Bounds are half open.
#[derive(Clone, Copy)]
struct Step {
    equal: bool,
    old: (usize, usize),
    new: (usize, usize),
}

struct Matcher<'a> {
    old: &'a [&'a str],
    new: &'a [&'a str],
    /// Positions of each line in the new text, without frequent lines.
    positions: HashMap<&'a str, Vec<usize>>,
}

impl<'a> Matcher<'a> {
    fn new(old: &'a [&'a str], new: &'a [&'a str]) -> Self {
        let mut positions: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, line) in new.iter().enumerate() {
            positions.entry(line).or_default().push(index);
        }
        if new.len() >= 200 {
            let frequent = new.len() / 100 + 1;
            positions.retain(|_, indices| indices.len() <= frequent);
        }
        Self { old, new, positions }
    }

    /// The longest equal block inside the bounds: start in both texts and length.
    fn longest(&self, old: (usize, usize), new: (usize, usize)) -> (usize, usize, usize) {
        let (mut best_old, mut best_new, mut best) = (old.0, new.0, 0);
        let mut lengths: HashMap<usize, usize> = HashMap::new();
        for i in old.0..old.1 {
            let mut next = HashMap::new();
            for &j in self.positions.get(self.old[i]).map_or(&[][..], Vec::as_slice) {
                if j < new.0 {
                    continue;
                }
                if j >= new.1 {
                    break;
                }
                let length = j.checked_sub(1).and_then(|j| lengths.get(&j)).copied().unwrap_or(0) + 1;
                next.insert(j, length);
                if length > best {
                    (best_old, best_new, best) = (i + 1 - length, j + 1 - length, length);
                }
            }
            lengths = next;
        }
        while best_old > old.0 && best_new > new.0 && self.old[best_old - 1] == self.new[best_new - 1] {
            (best_old, best_new, best) = (best_old - 1, best_new - 1, best + 1);
        }
        while best_old + best < old.1
            && best_new + best < new.1
            && self.old[best_old + best] == self.new[best_new + best]
        {
            best += 1;
        }
        (best_old, best_new, best)
    }

    /// All equal blocks in order, adjacent ones joined. Uses a work list instead of recursion.
    fn blocks(&self) -> Vec<(usize, usize, usize)> {
        let mut found = Vec::new();
        let mut pending = vec![((0, self.old.len()), (0, self.new.len()))];
        while let Some((old, new)) = pending.pop() {
            let (i, j, length) = self.longest(old, new);
            if length == 0 {
                continue;
            }
            found.push((i, j, length));
            if old.0 < i && new.0 < j {
                pending.push(((old.0, i), (new.0, j)));
            }
            if i + length < old.1 && j + length < new.1 {
                pending.push(((i + length, old.1), (j + length, new.1)));
            }
        }
        found.sort_unstable();
        let mut joined: Vec<(usize, usize, usize)> = Vec::new();
        for (i, j, length) in found {
            match joined.last_mut() {
                Some((pi, pj, plength)) if *pi + *plength == i && *pj + *plength == j => *plength += length,
                _ => joined.push((i, j, length)),
            }
        }
        joined.push((self.old.len(), self.new.len(), 0));
        joined
    }

    fn steps(&self) -> Vec<Step> {
        let (mut i, mut j) = (0, 0);
        let mut steps = Vec::new();
        for (old, new, length) in self.blocks() {
            if i < old || j < new {
                steps.push(Step { equal: false, old: (i, old), new: (j, new) });
            }
            (i, j) = (old + length, new + length);
            if length > 0 {
                steps.push(Step { equal: true, old: (old, i), new: (new, j) });
            }
        }
        steps
    }

    /// Steps with their context, split at long equal blocks.
    fn groups(&self) -> Vec<Vec<Step>> {
        let mut steps = self.steps();
        if steps.iter().all(|step| step.equal) {
            return Vec::new();
        }
        if let Some(first) = steps.first_mut().filter(|step| step.equal) {
            *first = tail(*first);
        }
        if let Some(last) = steps.last_mut().filter(|step| step.equal) {
            *last = head(*last);
        }
        let mut groups = Vec::new();
        let mut group = Vec::new();
        for step in steps {
            if step.equal && step.old.1 - step.old.0 > 2 * CONTEXT {
                group.push(head(step));
                groups.push(std::mem::take(&mut group));
                group.push(tail(step));
            } else {
                group.push(step);
            }
        }
        if group.iter().any(|step| !step.equal) {
            groups.push(group);
        }
        groups
    }
}

fn head(step: Step) -> Step {
    let end = |range: (usize, usize)| (range.0, range.1.min(range.0 + CONTEXT));
    Step { equal: true, old: end(step.old), new: end(step.new) }
}

fn tail(step: Step) -> Step {
    let start = |range: (usize, usize)| (range.0.max(range.1.saturating_sub(CONTEXT)), range.1);
    Step { equal: true, old: start(step.old), new: start(step.new) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diff_prints_unified_hunks() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh";
        assert_eq!(unified(old, old), "");
        assert_eq!(
            unified(old, "a\nb\nc\nX\nY\ne\nf\ng\nh"),
            "@@ -1,7 +1,8 @@\n a\n b\n c\n-d\n+X\n+Y\n e\n f\n g\n"
        );
        assert_eq!(unified("a", "b"), "@@ -1 +1 @@\n-a\n+b\n");
        assert_eq!(
            unified(old, "b\nc\nd\ne\nf\ng\nh\ni"),
            "@@ -1,4 +1,3 @@\n-a\n b\n c\n d\n@@ -6,3 +5,4 @@\n f\n g\n h\n+i\n"
        );
    }
}
