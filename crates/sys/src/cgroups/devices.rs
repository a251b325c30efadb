//! Device access of a cgroup: as lines for version 1, as a BPF program for version 2.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

/// An allowed device. `None` is any number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub block: bool,
    pub major: Option<u32>,
    pub minor: Option<u32>,
    pub read: bool,
    pub write: bool,
    pub make: bool,
}

impl Rule {
    const fn character(major: u32, minor: Option<u32>) -> Self {
        Self { block: false, major: Some(major), minor, read: true, write: true, make: true }
    }

    const fn nodes(block: bool) -> Self {
        Self { block, major: None, minor: None, read: false, write: false, make: true }
    }

    pub(super) fn permissions(&self) -> String {
        [(self.read, 'r'), (self.write, 'w'), (self.make, 'm')]
            .iter()
            .filter(|(yes, _)| *yes)
            .map(|(_, c)| c)
            .collect()
    }
}

/// Default rules: mknod of any device, access to harmless ones only: null, zero, full, random, urandom, tty, console,
/// terminals, and the tun device of many network tools.
const ALWAYS: &[Rule] = &[
    Rule::nodes(false),
    Rule::nodes(true),
    Rule::character(1, Some(3)),
    Rule::character(1, Some(5)),
    Rule::character(1, Some(7)),
    Rule::character(1, Some(8)),
    Rule::character(1, Some(9)),
    Rule::character(5, Some(0)),
    Rule::character(5, Some(1)),
    Rule::character(5, Some(2)),
    Rule::character(136, None),
];

pub(super) fn rules(extra: &[(&Path, &str)]) -> io::Result<Vec<Rule>> {
    let mut rules = ALWAYS.to_vec();
    for (path, permissions) in extra {
        let found = std::fs::metadata(path)?;
        let has = |c: char| permissions.contains(c);
        rules.push(Rule {
            block: found.file_type().is_block_device(),
            major: Some(rustix::fs::major(found.rdev())),
            minor: Some(rustix::fs::minor(found.rdev())),
            read: has('r'),
            write: has('w'),
            make: has('m'),
        });
    }
    Ok(rules)
}

/// An eBPF instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// Destination register in the lower half, source in the upper.
    registers: u8,
    offset: i16,
    operand: i32,
}

const LOAD_WORD: u8 = 0x61;
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const AND: u8 = 0x57;
const SHIFT_RIGHT: u8 = 0x77;
const JUMP_NOT_EQUAL: u8 = 0x55;
const EXIT: u8 = 0x95;

const fn op(code: u8, registers: u8, offset: i16, operand: i32) -> Instruction {
    Instruction { code, registers, offset, operand }
}

/// Context of the program: access in the upper half of the first word and device type in the lower, then major, then
/// minor.
pub(super) fn program(rules: &[Rule]) -> Vec<Instruction> {
    const BLOCK: i32 = 1;
    const CHARACTER: i32 = 2;
    let mut out = vec![
        op(LOAD_WORD, 0x12, 0, 0),
        op(AND, 0x02, 0, 0xffff),
        op(LOAD_WORD, 0x13, 0, 0),
        op(SHIFT_RIGHT, 0x03, 0, 16),
        op(LOAD_WORD, 0x14, 4, 0),
        op(LOAD_WORD, 0x15, 8, 0),
    ];
    for rule in rules {
        let access = i32::from(rule.make) | i32::from(rule.read) << 1 | i32::from(rule.write) << 2;
        let mut checks = vec![op(JUMP_NOT_EQUAL, 0x02, 0, if rule.block { BLOCK } else { CHARACTER })];
        // Requested access must be a subset of the allowed one.
        checks.push(op(MOVE_REGISTER, 0x31, 0, 0));
        checks.push(op(AND, 0x01, 0, !access & 7));
        checks.push(op(JUMP_NOT_EQUAL, 0x01, 0, 0));
        for (register, number) in [(0x04, rule.major), (0x05, rule.minor)] {
            if let Some(number) = number {
                checks.push(op(JUMP_NOT_EQUAL, register, 0, number.cast_signed()));
            }
        }
        let count = checks.len();
        for (at, check) in checks.iter_mut().enumerate().filter(|(_, check)| check.code == JUMP_NOT_EQUAL) {
            // Jumps behind the remaining checks and the two allow instructions.
            check.offset = i16::try_from(count - at - 1 + 2).unwrap_or(i16::MAX);
        }
        out.append(&mut checks);
        out.extend([op(MOVE, 0x00, 0, 1), op(EXIT, 0, 0, 0)]);
    }
    out.extend([op(MOVE, 0x00, 0, 0), op(EXIT, 0, 0, 0)]);
    out
}

/// Loads a program and attaches it to the cgroup in `directory`.
#[expect(unsafe_code, reason = "the program is passed to the kernel by address")]
pub(super) fn attach(directory: &Path, program: &[Instruction]) -> io::Result<()> {
    #[repr(C)]
    #[derive(Default)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        rest: [u64; 16],
    }
    #[repr(C)]
    #[derive(Default)]
    struct Attach {
        target: u32,
        program: u32,
        kind: u32,
        flags: u32,
        rest: [u64; 4],
    }
    const PROGRAM_LOAD: libc::c_int = 5;
    const PROGRAM_ATTACH: libc::c_int = 8;
    const CGROUP_DEVICE: u32 = 15;
    const ATTACH_DEVICE: u32 = 6;
    const ALLOW_MULTI: u32 = 2;
    let group = std::fs::File::open(directory)?;
    let load = Load {
        kind: CGROUP_DEVICE,
        count: u32::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?,
        instructions: program.as_ptr() as u64,
        license: c"Apache".as_ptr() as u64,
        ..Load::default()
    };
    // SAFETY: the structure and its pointees are alive during the call; the kernel verifies the program.
    let loaded = unsafe { libc::syscall(libc::SYS_bpf, PROGRAM_LOAD, &raw const load, size_of::<Load>()) };
    let loaded = i32::try_from(loaded).unwrap_or(-1);
    if loaded < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, which has no other owner.
    let loaded = unsafe { OwnedFd::from_raw_fd(loaded) };
    let number = |fd: i32| u32::try_from(fd).unwrap_or(u32::MAX);
    let attach = Attach {
        target: number(group.as_raw_fd()),
        program: number(loaded.as_raw_fd()),
        kind: ATTACH_DEVICE,
        flags: ALLOW_MULTI,
        ..Attach::default()
    };
    // SAFETY: the structure is alive during the call, the descriptors too.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, PROGRAM_ATTACH, &raw const attach, size_of::<Attach>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets a program like the kernel.
    fn run(program: &[Instruction], kind: u32, access: u32, major: u32, minor: u32) -> i64 {
        let context = [access << 16 | kind, major, minor];
        let (mut registers, mut at) = ([0_i64; 11], 0_usize);
        loop {
            let Instruction { code, registers: names, offset, operand } = program[at];
            let (to, from) = (usize::from(names & 15), usize::from(names >> 4));
            at += 1;
            match code {
                LOAD_WORD => registers[to] = i64::from(context[usize::try_from(offset).unwrap() / 4]),
                MOVE => registers[to] = i64::from(operand),
                MOVE_REGISTER => registers[to] = registers[from],
                AND => registers[to] &= i64::from(operand),
                SHIFT_RIGHT => registers[to] >>= operand,
                JUMP_NOT_EQUAL => {
                    if registers[to] != i64::from(operand) {
                        at += usize::try_from(offset).unwrap();
                    }
                }
                EXIT => return registers[0],
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn device_program_allows_listed_access() {
        let program = program(&rules(&[(Path::new("/dev/full"), "r")]).unwrap());
        let (make, read, write) = (1, 2, 4);
        for (kind, access, major, minor, allowed) in [
            (2, read | write, 1, 3, 1),
            (2, make, 10, 1, 1),
            (1, make, 8, 0, 1),
            (1, read, 8, 0, 0),
            (1, make | read, 8, 0, 0),
            (2, read, 136, 77, 1),
            (2, read, 1, 1, 0),
        ] {
            assert_eq!(run(&program, kind, access, major, minor), allowed, "{kind} {access} {major}:{minor}");
        }
        assert_eq!(rules(&[(Path::new("/dev/full"), "r")]).unwrap().last().unwrap().permissions(), "r");
    }
}
