//! Lists of indexes of an indexed job: `1,3-5,7`.

use machinery::field::show_str;

/// Number of indexes in the list; the error is that of a malformed list.
pub fn count(list: &str, completions: i64) -> Result<i64, String> {
    if list.is_empty() {
        return Ok(0);
    }
    let (mut total, mut last): (i64, Option<i64>) = (0, None);
    for interval in list.split(',') {
        let (start, end) = parse(interval, completions)?;
        if let Some(last) = last.filter(|last| *last >= start) {
            return Err(format!("non-increasing order, previous: {last}, current: {start}"));
        }
        total += end - start + 1;
        last = Some(end);
    }
    Ok(total)
}

fn parse(interval: &str, completions: i64) -> Result<(i64, i64), String> {
    let mut parts = interval.split('-');
    let (first, second, more) = (parts.next().unwrap_or(""), parts.next(), parts.next());
    if more.is_some() {
        return Err(format!(
            "the fragment {interval:?} violates the requirement that an index interval can have at most two parts separated by '-'"
        ));
    }
    let start = index(first, completions)?;
    let Some(second) = second else { return Ok((start, start)) };
    let end = index(second, completions)?;
    if start >= end {
        return Err(format!("non-increasing order, previous: {start}, current: {end}"));
    }
    Ok((start, end))
}

fn index(text: &str, completions: i64) -> Result<i64, String> {
    let Ok(index) = text.parse::<i64>() else {
        return Err(format!("cannot convert string to integer for index: {}", show_str(text)));
    };
    if index >= completions { Err(format!("too large index: {text:?}")) } else { Ok(index) }
}

/// First index in both lists; malformed parts are ignored.
pub fn overlap(completed: &str, failed: &str, completions: i64) -> Option<i64> {
    if completed.is_empty() || failed.is_empty() {
        return None;
    }
    let intervals = |list: &str| -> Vec<(i64, i64)> {
        list.split(',').filter_map(|interval| parse(interval, completions).ok()).collect()
    };
    let (completed, failed) = (intervals(completed), intervals(failed));
    let (mut i, mut j) = (0, 0);
    while let (Some((c_start, c_end)), Some((f_start, f_end))) = (completed.get(i), failed.get(j)) {
        if c_start <= f_end && f_start <= c_end {
            return Some(*c_start.max(f_start));
        }
        if c_start <= f_start {
            i += 1;
        } else {
            j += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_lists_are_counted_and_validated() {
        assert_eq!(count("", 5), Ok(0));
        assert_eq!(count("0,2-4", 5), Ok(4));
        for (list, problem) in [
            ("5,1", "too large index: \"5\""),
            ("1-2-3", "the fragment \"1-2-3\" violates"),
            ("3,2", "non-increasing order, previous: 3, current: 2"),
            ("3-3", "non-increasing order, previous: 3, current: 3"),
            ("a", "cannot convert string to integer for index: \"a\""),
        ] {
            let found = count(list, 5).expect_err(list);
            assert!(found.starts_with(problem), "{list}: {found}");
        }
        assert_eq!(overlap("0-2,4", "3,4", 9), Some(4));
        assert_eq!(overlap("0-2", "3", 9), None);
    }
}
