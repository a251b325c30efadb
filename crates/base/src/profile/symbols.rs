//! Function names of addresses, from the symbol table of the executable.

use std::fs;

/// Start address, size and name of a function.
#[derive(Debug)]
struct Function {
    address: u64,
    size: u64,
    name: String,
}

/// The mapped executable and its functions. Addresses of shared libraries have no name.
#[derive(Debug, Default)]
pub struct Symbols {
    pub path: String,
    /// Range of addresses of the executable in this process.
    pub start: u64,
    pub end: u64,
    functions: Vec<Function>,
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn offset(bytes: &[u8], at: usize, length: usize) -> Option<usize> {
    usize::try_from(number(bytes, at, length)?).ok()
}

/// A section of a 64-bit little-endian ELF file: its type, link, file offset and size.
fn section(file: &[u8], index: usize) -> Option<(u64, usize, usize, usize)> {
    let (table, size) = (offset(file, 40, 8)?, offset(file, 58, 2)?);
    let at = table.checked_add(index.checked_mul(size)?)?;
    Some((
        number(file, at + 4, 4)?,
        offset(file, at + 40, 4)?,
        offset(file, at + 24, 8)?,
        offset(file, at + 32, 8)?,
    ))
}

const SYMBOL_TABLE: u64 = 2;
const SYMBOL_SIZE: usize = 24;
const FUNCTION: u64 = 2;
const LITTLE_64: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];

/// Functions of an ELF file; none if it has no symbol table or is no such file.
fn functions(file: &[u8]) -> Option<Vec<Function>> {
    if !file.starts_with(&LITTLE_64) {
        return None;
    }
    let count = offset(file, 60, 2)?;
    let (_, link, start, size) =
        (0..count).filter_map(|index| section(file, index)).find(|(kind, ..)| *kind == SYMBOL_TABLE)?;
    let (_, _, names, names_size) = section(file, link)?;
    let names = file.get(names..names.checked_add(names_size)?)?;
    let symbols = file.get(start..start.checked_add(size)?)?;
    let mut functions: Vec<_> = symbols
        .chunks_exact(SYMBOL_SIZE)
        .filter_map(|symbol| {
            let (address, size) = (number(symbol, 8, 8)?, number(symbol, 16, 8)?);
            if number(symbol, 4, 1)? & 15 != FUNCTION || size == 0 {
                return None;
            }
            let name = names.get(offset(symbol, 0, 4)?..)?.split(|byte| *byte == 0).next()?;
            let name = format!("{:#}", rustc_demangle::demangle(&String::from_utf8_lossy(name)));
            Some(Function { address, size, name })
        })
        .collect();
    functions.sort_unstable_by_key(|function| function.address);
    Some(functions)
}

impl Symbols {
    /// Reads `/proc/self`. Without a symbol table functions have no names, and pprof shows addresses.
    #[must_use]
    pub fn of_this_process() -> Self {
        let path = fs::read_link("/proc/self/exe").unwrap_or_default().to_string_lossy().into_owned();
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let ranges = maps.lines().filter(|line| line.ends_with(&path)).filter_map(|line| {
            let (start, end) = line.split_whitespace().next()?.split_once('-')?;
            Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
        });
        let (start, end) = ranges.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1))).unwrap_or_default();
        let functions = fs::read("/proc/self/exe").ok().and_then(|file| functions(&file)).unwrap_or_default();
        Self { path, start, end, functions }
    }

    /// The name of the function that contains an address of this process.
    #[must_use]
    pub fn name(&self, address: u64) -> Option<&str> {
        // A position-independent executable is linked at address 0.
        let address = if self.contains(address) { address - self.start } else { return None };
        let after = self.functions.partition_point(|function| function.address <= address);
        let function = self.functions.get(after.checked_sub(1)?)?;
        (address - function.address < function.size).then_some(&*function.name)
    }

    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_of_this_executable_is_named() {
        let symbols = Symbols::of_this_process();
        let address = function_of_this_executable_is_named as fn() as usize as u64;
        let name = symbols.name(address + 1).unwrap_or_default();
        assert!(name.contains("function_of_this_executable_is_named"), "{name:?}");
        assert_eq!(symbols.name(1), None);
    }

    #[test]
    fn damaged_files_have_no_functions() {
        let file = fs::read("/proc/self/exe").expect("own executable");
        let mut damaged = file.get(..4096).expect("a page").to_vec();
        assert!(functions(&damaged).is_none_or(|functions| functions.is_empty()));
        for at in 0..64 {
            for value in [0, 1, 0x7f, 0xff] {
                let old = std::mem::replace(&mut damaged[at], value);
                let _ = functions(&damaged);
                damaged[at] = old;
            }
        }
        assert!(functions(b"").is_none());
    }
}
