//! Compiles a profile to a BPF filter: per system call a comparison with its number, then its rules.

use std::collections::BTreeMap;

use super::syscalls::TABLE;
use super::{Action, Argument, Comparison, Condition, Instruction, Profile, ProfileError, Rule};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: (u32, &str) = (0xc000_003e, "amd64");
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: (u32, &str) = (0xc000_00b7, "arm64");

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

const fn op(code: u16, operand: u32) -> Instruction {
    Instruction { code, jump_true: 0, jump_false: 0, operand }
}

fn result(action: Action, errno: Option<u32>) -> u32 {
    let errno = errno.unwrap_or(libc::EPERM as u32) & 0xffff;
    match action {
        Action::Allow => 0x7fff_0000,
        Action::Errno => 0x0005_0000 | errno,
        Action::KillThread => 0,
        Action::KillProcess => 0x8000_0000,
        Action::Log => 0x7ffc_0000,
        Action::Trap => 0x0003_0000,
        Action::Trace => 0x7ff0_0000 | errno,
    }
}

/// Number of a system call on this architecture; `None` if it does not exist.
fn number(name: &str) -> Option<u32> {
    let at = TABLE.binary_search_by(|entry| entry.0.cmp(name)).ok()?;
    let number = if cfg!(target_arch = "x86_64") { TABLE[at].1 } else { TABLE[at].2 };
    u32::try_from(number).ok()
}

/// Compiles a profile for a container with these capabilities.
///
/// ```
/// use sys::seccomp::{Profile, compile};
///
/// let profile = br#"{"defaultAction": "SCMP_ACT_ALLOW",
///     "syscalls": [{"names": ["mount"], "action": "SCMP_ACT_ERRNO"}]}"#;
/// let filter = compile(&Profile::parse(profile)?, 0)?;
/// assert!(!filter.is_empty());
/// # Ok::<(), sys::seccomp::ProfileError>(())
/// ```
pub fn compile(profile: &Profile, capabilities: u64) -> Result<Vec<Instruction>, ProfileError> {
    let otherwise = op(RETURN, result(profile.default_action, profile.default_errno_ret));
    let mut calls: BTreeMap<u32, Vec<&Rule>> = BTreeMap::new();
    for rule in &profile.syscalls {
        if !applies(rule, capabilities) {
            continue;
        }
        for argument in &rule.args {
            if argument.index > 5 {
                return Err(ProfileError::Argument(argument.index, rule.names.join(", ")));
            }
        }
        for number in rule.names.iter().chain(&rule.name).filter_map(|name| number(name)) {
            calls.entry(number).or_default().push(rule);
        }
    }
    let mut program = vec![
        op(LOAD, 4),
        Instruction { code: JUMP_EQUAL, jump_true: 1, jump_false: 0, operand: ARCHITECTURE.0 },
        otherwise,
        op(LOAD, 0),
    ];
    if cfg!(target_arch = "x86_64") {
        // Numbers of the x32 calling convention.
        program.push(Instruction {
            code: JUMP_GREATER_EQUAL,
            jump_true: 0,
            jump_false: 1,
            operand: 0x4000_0000,
        });
        program.push(otherwise);
    }
    for (number, rules) in calls {
        let mut body = Vec::new();
        for rule in rules {
            let mut checks = Vec::new();
            let answer = op(RETURN, result(rule.action, rule.errno_ret));
            if rule.args.is_empty() {
                body.push(answer);
                break;
            }
            // Each check jumps behind the return when it fails; they are laid out from the last to the first.
            for argument in rule.args.iter().rev() {
                checks.push(check(argument));
            }
            let mut laid = vec![answer];
            for check in checks {
                let after = laid.len();
                let mut placed = check(after);
                placed.append(&mut laid);
                laid = placed;
            }
            body.append(&mut laid);
        }
        if body.last().is_none_or(|last| last.code != RETURN) || body.len() > 1 {
            body.push(otherwise);
        }
        program.push(Instruction { code: JUMP_EQUAL, jump_true: 1, jump_false: 0, operand: number });
        program.push(op(JUMP, u32::try_from(body.len()).unwrap_or(u32::MAX)));
        program.append(&mut body);
    }
    program.push(otherwise);
    if program.len() > 4096 {
        return Err(ProfileError::TooLong(program.len()));
    }
    Ok(program)
}

fn applies(rule: &Rule, capabilities: u64) -> bool {
    let has =
        |name: &String| crate::capabilities::number(name).is_some_and(|bit| capabilities >> bit & 1 == 1);
    let here = |name: &String| name == ARCHITECTURE.1;
    let Condition { caps, arches, min_kernel: _ } = &rule.includes;
    let included = caps.iter().all(has) && (arches.is_empty() || arches.iter().any(here));
    included && !rule.excludes.caps.iter().any(has) && !rule.excludes.arches.iter().any(here)
}

/// Instructions that fall through when the argument matches, and otherwise jump over the `after` instructions behind
/// them. Arguments are 64 bits wide, BPF words 32: the upper half is compared first.
fn check(argument: &Argument) -> impl FnOnce(usize) -> Vec<Instruction> {
    let argument = *argument;
    move |after| {
        let data_offset = 16 + argument.index * 8;
        let (low, high) = (data_offset, data_offset + 4);
        let value = argument.value;
        let half = |value: u64| (u32::try_from(value >> 32).unwrap_or(0), value as u32);
        let (value_high, value_low) = half(value);
        // Symbolic targets, resolved below: fail is behind everything, pass is the end of this check.
        enum To {
            Next,
            Pass,
            Fail,
        }
        let plan: Vec<(u16, u32, To, To)> = match argument.op {
            Comparison::Equal => vec![
                (LOAD, high, To::Next, To::Next),
                (JUMP_EQUAL, value_high, To::Next, To::Fail),
                (LOAD, low, To::Next, To::Next),
                (JUMP_EQUAL, value_low, To::Pass, To::Fail),
            ],
            Comparison::NotEqual => vec![
                (LOAD, high, To::Next, To::Next),
                (JUMP_EQUAL, value_high, To::Next, To::Pass),
                (LOAD, low, To::Next, To::Next),
                (JUMP_EQUAL, value_low, To::Fail, To::Pass),
            ],
            Comparison::MaskedEqual => {
                let (two_high, two_low) = half(argument.value_two);
                vec![
                    (LOAD, high, To::Next, To::Next),
                    (AND, value_high, To::Next, To::Next),
                    (JUMP_EQUAL, two_high, To::Next, To::Fail),
                    (LOAD, low, To::Next, To::Next),
                    (AND, value_low, To::Next, To::Next),
                    (JUMP_EQUAL, two_low, To::Pass, To::Fail),
                ]
            }
            Comparison::Greater | Comparison::GreaterOrEqual => vec![
                (LOAD, high, To::Next, To::Next),
                (JUMP_GREATER, value_high, To::Pass, To::Next),
                (JUMP_EQUAL, value_high, To::Next, To::Fail),
                (LOAD, low, To::Next, To::Next),
                match argument.op {
                    Comparison::Greater => (JUMP_GREATER, value_low, To::Pass, To::Fail),
                    _ => (JUMP_GREATER_EQUAL, value_low, To::Pass, To::Fail),
                },
            ],
            Comparison::Less | Comparison::LessOrEqual => vec![
                (LOAD, high, To::Next, To::Next),
                (JUMP_GREATER, value_high, To::Fail, To::Next),
                (JUMP_EQUAL, value_high, To::Next, To::Pass),
                (LOAD, low, To::Next, To::Next),
                match argument.op {
                    Comparison::Less => (JUMP_GREATER_EQUAL, value_low, To::Fail, To::Pass),
                    _ => (JUMP_GREATER, value_low, To::Fail, To::Pass),
                },
            ],
        };
        let count = plan.len();
        // Six checks of at most six instructions: every jump fits its eight bits.
        let jump = |at: usize, to: &To| match to {
            To::Next => 0,
            To::Pass => u8::try_from(count - at - 1).unwrap_or(u8::MAX),
            To::Fail => u8::try_from(count - at - 1 + after).unwrap_or(u8::MAX),
        };
        plan.iter()
            .enumerate()
            .map(|(at, (code, operand, yes, no))| Instruction {
                code: *code,
                jump_true: jump(at, yes),
                jump_false: jump(at, no),
                operand: *operand,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets a filter like the kernel.
    fn run(program: &[Instruction], number: u32, arguments: [u64; 6], architecture: u32) -> u32 {
        let load = |offset: u32| match offset {
            0 => number,
            4 => architecture,
            _ => {
                let argument = arguments[(offset as usize - 16) / 8];
                if offset.is_multiple_of(8) { argument as u32 } else { (argument >> 32) as u32 }
            }
        };
        let (mut at, mut value) = (0, 0);
        loop {
            let Instruction { code, jump_true, jump_false, operand } = program[at];
            let jump = |holds: bool| usize::from(if holds { jump_true } else { jump_false });
            at += 1;
            match code {
                LOAD => value = load(operand),
                AND => value &= operand,
                JUMP => at += operand as usize,
                JUMP_EQUAL => at += jump(value == operand),
                JUMP_GREATER => at += jump(value > operand),
                JUMP_GREATER_EQUAL => at += jump(value >= operand),
                RETURN => return operand,
                other => panic!("instruction {other}"),
            }
        }
    }

    const ALLOW: u32 = 0x7fff_0000;

    #[test]
    fn syscall_table_is_sorted() {
        assert!(TABLE.is_sorted_by(|a, b| a.0 < b.0));
        assert!(number("read").is_some() && number("no_such_call").is_none());
        for name in super::super::default::ALLOWED {
            assert!(TABLE.binary_search_by(|entry| entry.0.cmp(name)).is_ok(), "{name}");
        }
    }

    #[test]
    fn default_profile_allows_and_denies() {
        let call = |capabilities: u64, name: &str, first: u64| {
            let program = compile(&Profile::runtime_default(capabilities), capabilities).unwrap();
            run(&program, number(name).unwrap(), [first, 0, 0, 0, 0, 0], ARCHITECTURE.0)
        };
        let plain = crate::capabilities::defaults();
        let admin = plain | 1 << 21;
        let refused = |errno: i32| 0x0005_0000 | errno as u32;
        for (capabilities, name, first, expected) in [
            (plain, "read", 0, ALLOW),
            (plain, "mount", 0, refused(libc::EPERM)),
            (admin, "mount", 0, ALLOW),
            (plain, "clone", 0x11, ALLOW),
            (plain, "clone", 0x2000_0000, refused(libc::EPERM)),
            (admin, "clone", 0x2000_0000, ALLOW),
            (plain, "clone3", 0, refused(libc::ENOSYS)),
            (plain, "personality", 0x8, ALLOW),
            (plain, "personality", 0x4, refused(libc::EPERM)),
            (plain, "socket", 2, ALLOW),
            (plain, "socket", 40, refused(libc::EPERM)),
            (plain, "chroot", 0, ALLOW),
            (0, "chroot", 0, refused(libc::EPERM)),
        ] {
            assert_eq!(call(capabilities, name, first), expected, "{name}({first:#x})");
        }
        let program = compile(&Profile::runtime_default(plain), plain).unwrap();
        assert_eq!(
            run(&program, number("read").unwrap(), [0; 6], 0x4000_0003),
            refused(libc::EPERM),
            "32 bit"
        );
    }

    #[test]
    fn argument_comparisons_match() {
        use Comparison::*;
        for (op, value, two, yes, no) in [
            (Equal, 0x1_0000_0002, 0, vec![0x1_0000_0002], vec![2, 0x1_0000_0003]),
            (NotEqual, 7, 0, vec![8, 0x1_0000_0007], vec![7]),
            (Less, 0x1_0000_0000, 0, vec![0, 0xffff_ffff], vec![0x1_0000_0000, u64::MAX]),
            (LessOrEqual, 5, 0, vec![5, 0], vec![6, 0x1_0000_0000]),
            (Greater, 5, 0, vec![6, 0x1_0000_0000], vec![5, 0]),
            (GreaterOrEqual, 5, 0, vec![5, 6], vec![4]),
            (MaskedEqual, 0xf0, 0x10, vec![0x1f, 0x10], vec![0x20, 0]),
        ] {
            let argument = Argument { index: 5, value, value_two: two, op };
            let json = serde_json::json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "syscalls": [
                {"names": ["read"], "action": "SCMP_ACT_ALLOW", "args": [argument,
                    {"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}]}]});
            let program = compile(&Profile::parse(json.to_string().as_bytes()).unwrap(), 0).unwrap();
            let call = |first, last| {
                run(&program, number("read").unwrap(), [first, 0, 0, 0, 0, last], ARCHITECTURE.0) == ALLOW
            };
            for last in yes {
                assert!(call(1, last) && !call(0, last), "{op:?} {last:#x}");
            }
            for last in no {
                assert!(!call(1, last), "{op:?} {last:#x}");
            }
        }
    }

    #[test]
    fn invalid_profiles_are_rejected() {
        assert!(Profile::parse(b"{}").is_err());
        let profile =
            br#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["read"],"action":"SCMP_ACT_ERRNO",
            "args":[{"index":6,"value":0,"op":"SCMP_CMP_EQ"}]}]}"#;
        assert!(matches!(compile(&Profile::parse(profile).unwrap(), 0), Err(ProfileError::Argument(6, _))));
    }
}
