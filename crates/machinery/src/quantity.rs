//! Resource quantities: `100m`, `1536Mi`, `5e3`. Parsing, arithmetic and canonical text follow Kubernetes, including
//! its quirks: a text that is nearly canonical is retained unmodified.
//!
//! Numbers are exact to 35 significant digits and to one billionth; smaller fractions are rounded away from zero.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// Notation of a quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// `12e6`
    Exponent,
    /// `12Mi`
    Binary,
    /// `12M`
    #[default]
    Decimal,
}

/// Parse error of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// `value × 10^scale`.
///
/// ```
/// use machinery::quantity::Quantity;
///
/// let memory = Quantity::parse("1.5Gi")?;
/// assert_eq!((memory.value(), memory.to_string().as_str()), (1_610_612_736, "1536Mi"));
/// assert_eq!(Quantity::parse("250m")?.milli_value(), 250);
/// # Ok::<(), machinery::quantity::QuantityError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    value: i128,
    scale: i32,
    format: Format,
}

/// Mantissas stay below this limit, so that products with small powers of ten cannot overflow.
const LIMIT: i128 = 10i128.pow(35);
const NANO: i32 = -9;

const DECIMAL_SUFFIXES: &[(&str, i32)] = &[
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY_SUFFIXES: &[(&str, u32)] =
    &[("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

/// Components of a quantity's text.
struct Parts<'a> {
    negative: bool,
    /// Digits before the point without leading zeros; `0` when there are none.
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
}

enum Base {
    Ten(i32, Format),
    Two(u32),
}

/// The canonical form of a quantity's text; borrowed when it is canonical already.
pub fn canonical(text: &str) -> Result<Cow<'_, str>, QuantityError> {
    if is_plain(text) {
        return Ok(Cow::Borrowed(text));
    }
    let (quantity, keep) = parse(text)?;
    if keep {
        return Ok(Cow::Borrowed(text));
    }
    let written = quantity.to_string();
    Ok(if written == text { Cow::Borrowed(text) } else { Cow::Owned(written) })
}

/// True if a text is canonical by a cheap test: a few digits and a suffix that could not be a larger one.
fn is_plain(text: &str) -> bool {
    let digits = digits_at(text);
    if !(1..=6).contains(&digits) || text.starts_with('0') {
        return false;
    }
    let (digits, suffix) = text.split_at(digits);
    match suffix {
        "" | "m" | "k" | "M" | "G" | "T" => !digits.ends_with("000"),
        "Ki" | "Mi" | "Gi" | "Ti" => {
            digits.bytes().fold(0, |number, digit| number * 10 + u32::from(digit - b'0')) % 1024 != 0
        }
        _ => false,
    }
}

/// Parses a quantity; the flag is true if its text is retained unmodified.
fn parse(text: &str) -> Result<(Quantity, bool), QuantityError> {
    if text.is_empty() {
        return Err(QuantityError::Format);
    }
    if text == "0" {
        return Ok((Quantity::default(), true));
    }
    let parts = split(text)?;
    let base = interpret(parts.suffix)?;
    let digits = parts.whole.len() + parts.fraction.len();
    let mut quantity = decimal(parts.whole, parts.fraction);
    let keep;
    match base {
        Base::Ten(exponent, format) => {
            let scale = exponent.saturating_sub(i32::try_from(parts.fraction.len()).unwrap_or(i32::MAX));
            let first = if parts.whole.is_empty() { parts.fraction } else { parts.whole };
            let thousands = parts
                .whole
                .bytes()
                .chain(parts.fraction.bytes())
                .rev()
                .take(3)
                .filter(|b| *b == b'0')
                .count()
                == 3;
            keep = digits <= 18 && scale >= NANO && scale % 3 == 0 && !thousands && !first.starts_with('0');
            quantity.scale = quantity.scale.saturating_add(exponent);
            quantity.format = format;
            quantity.round_up(NANO);
        }
        Base::Two(exponent) => {
            let width =
                i64::try_from(digits).unwrap_or(i64::MAX).saturating_add(i64::from(exponent * 3 / 10));
            keep = parts.fraction.is_empty() && width <= 14 && quantity.value & 7 != 0 && quantity.scale == 0;
            quantity.format = Format::Binary;
            quantity.multiply_by_power_of_two(exponent);
            quantity.round_up(NANO);
            let max = Quantity::new(i64::MAX);
            if quantity.cmp(&max) == Ordering::Greater {
                quantity = Quantity { format: Format::Binary, ..max };
            }
            if quantity.value > 0 && quantity.cmp(&Quantity::new(1)) == Ordering::Less {
                quantity.format = Format::Decimal;
            }
        }
    }
    if parts.negative {
        quantity.value = -quantity.value;
    }
    Ok((quantity, keep))
}

fn split(text: &str) -> Result<Parts<'_>, QuantityError> {
    let (negative, rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let rest = rest.trim_start_matches('0');
    let (whole, rest) = rest.split_at(digits_at(rest));
    let whole = if whole.is_empty() { "0" } else { whole };
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits_at(rest)),
        None => ("", rest),
    };
    let letters = suffix.bytes().take_while(|b| b"eEinumkKMGTP".contains(b)).count();
    let number = &suffix[letters..];
    let number = number.strip_prefix(['-', '+']).unwrap_or(number);
    if digits_at(number) != number.len() {
        return Err(QuantityError::Format);
    }
    Ok(Parts { negative, whole, fraction, suffix })
}

fn digits_at(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn interpret(suffix: &str) -> Result<Base, QuantityError> {
    if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Ok(Base::Ten(*exponent, Format::Decimal));
    }
    if let Some((_, exponent)) = BINARY_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Ok(Base::Two(*exponent));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?;
    let exponent: i64 = exponent.parse().map_err(|_| QuantityError::Suffix)?;
    let exponent = exponent.clamp(i64::from(i32::MIN / 2), i64::from(i32::MAX / 2));
    Ok(Base::Ten(i32::try_from(exponent).unwrap_or(0), Format::Exponent))
}

/// Digits as a number; beyond 35 of them the rest rounds up the last digit.
fn decimal(whole: &str, fraction: &str) -> Quantity {
    let mut quantity = Quantity::default();
    let mut inexact = false;
    for (index, digit) in whole.bytes().chain(fraction.bytes()).enumerate() {
        let of_fraction = index >= whole.len();
        if quantity.value < LIMIT / 10 {
            quantity.value = quantity.value * 10 + i128::from(digit - b'0');
            quantity.scale = quantity.scale.saturating_sub(i32::from(of_fraction));
        } else {
            inexact |= digit != b'0';
            quantity.scale = quantity.scale.saturating_add(i32::from(!of_fraction));
        }
    }
    quantity.value += i128::from(inexact);
    quantity
}

/// Divides, rounding away from zero; the flag is true if the division was exact.
fn divide_up(value: i128, divisor: i128) -> (i128, bool) {
    let (quotient, remainder) = (value / divisor, value % divisor);
    (quotient + remainder.signum(), remainder == 0)
}

impl Quantity {
    /// A whole number in decimal notation.
    pub fn new(value: i64) -> Self {
        Self { value: i128::from(value), scale: 0, format: Format::Decimal }
    }

    /// Thousandths in decimal notation.
    pub fn from_milli(value: i64) -> Self {
        Self { value: i128::from(value), scale: -3, format: Format::Decimal }
    }

    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse(text.trim()).map(|(quantity, _)| quantity)
    }

    pub fn format(&self) -> Format {
        self.format
    }

    /// The same amount in another notation.
    pub fn with_format(self, format: Format) -> Self {
        Self { format, ..self }
    }

    pub fn is_zero(&self) -> bool {
        self.value == 0
    }

    /// -1, 0 or 1.
    pub fn sign(&self) -> i32 {
        match self.value.cmp(&0) {
            Ordering::Less => -1,
            Ordering::Equal => 0,
            Ordering::Greater => 1,
        }
    }

    /// The amount, if it is a whole number that fits.
    pub fn as_i64(&self) -> Option<i64> {
        let mut rounded = *self;
        if !rounded.round_up(0) {
            return None;
        }
        let power = u32::try_from(rounded.scale).ok()?;
        let value = rounded.value.checked_mul(10i128.checked_pow(power)?)?;
        i64::try_from(value).ok()
    }

    /// The amount in whole units, rounded away from zero and saturated.
    pub fn value(&self) -> i64 {
        self.scaled(0)
    }

    /// The amount in thousandths, rounded away from zero and saturated.
    pub fn milli_value(&self) -> i64 {
        self.scaled(-3)
    }

    pub fn as_f64(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an approximation is intended")]
        let value = self.value as f64;
        value * 10f64.powi(self.scale)
    }

    fn scaled(&self, scale: i32) -> i64 {
        let mut rounded = *self;
        rounded.round_up(scale);
        let bound = if self.value < 0 { i64::MIN } else { i64::MAX };
        let power = u32::try_from(rounded.scale.saturating_sub(scale)).unwrap_or(0);
        10i128
            .checked_pow(power)
            .and_then(|factor| rounded.value.checked_mul(factor))
            .map_or(if self.value == 0 { 0 } else { bound }, |value| i64::try_from(value).unwrap_or(bound))
    }

    /// Rounds up to a multiple of `10^scale`; returns true if the value was exact.
    fn round_up(&mut self, scale: i32) -> bool {
        if self.scale >= scale || self.value == 0 {
            self.scale = self.scale.max(scale).min(if self.value == 0 { 0 } else { i32::MAX });
            return true;
        }
        let power = scale.saturating_sub(self.scale).unsigned_abs();
        let (value, exact) = match 10i128.checked_pow(power) {
            Some(divisor) => divide_up(self.value, divisor),
            None => (self.value.signum(), false),
        };
        self.value = value;
        self.scale = scale;
        exact
    }

    fn multiply_by_power_of_two(&mut self, exponent: u32) {
        match self.value.checked_mul(1i128 << exponent) {
            Some(value) => {
                self.value = value;
                while self.value.abs() >= LIMIT {
                    self.value = divide_up(self.value, 10).0;
                    self.scale = self.scale.saturating_add(1);
                }
            }
            // Far above the cap of binary quantities, unless it is all fraction.
            None => {
                while self.value.checked_mul(1i128 << exponent).is_none() {
                    self.value = divide_up(self.value, 10).0;
                    self.scale = self.scale.saturating_add(1);
                }
                self.multiply_by_power_of_two(exponent);
            }
        }
    }

    /// Both amounts at one scale, the finer one if the digits allow it.
    fn aligned(mut a: Quantity, mut b: Quantity) -> (i128, i128, i32) {
        if a.value == 0 {
            return (0, b.value, b.scale);
        }
        if b.value == 0 {
            return (a.value, 0, a.scale);
        }
        while a.scale != b.scale {
            let (coarse, fine) = if a.scale > b.scale { (&mut a, &mut b) } else { (&mut b, &mut a) };
            if coarse.value.abs() < LIMIT / 10 {
                coarse.value *= 10;
                coarse.scale -= 1;
            } else {
                let target = coarse.scale;
                fine.round_up(target);
            }
        }
        (a.value, b.value, a.scale)
    }

    /// Removes trailing zeros.
    fn stripped(mut self) -> Self {
        while self.value != 0 && self.value % 10 == 0 {
            self.value /= 10;
            self.scale = self.scale.saturating_add(1);
        }
        self
    }
}

impl std::ops::AddAssign for Quantity {
    fn add_assign(&mut self, other: Self) {
        let format = if self.is_zero() { other.format } else { self.format };
        let (a, b, scale) = Self::aligned(*self, other);
        *self = Self { value: a + b, scale, format };
        while self.value.abs() >= LIMIT {
            self.value = divide_up(self.value, 10).0;
            self.scale = self.scale.saturating_add(1);
        }
    }
}

impl std::ops::SubAssign for Quantity {
    fn sub_assign(&mut self, other: Self) {
        *self += Self { value: -other.value, ..other };
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.scale == other.scale {
            return self.value.cmp(&other.value);
        }
        let sign = self.value.signum().cmp(&other.value.signum());
        if sign != Ordering::Equal || self.value == 0 {
            return sign;
        }
        let (a, b) = (self.stripped(), other.stripped());
        let order = |q: &Quantity| i64::from(q.value.unsigned_abs().ilog10()) + i64::from(q.scale);
        let magnitude = match order(&a).cmp(&order(&b)) {
            Ordering::Equal => {
                let (a, b, _) = Self::aligned(a, b);
                return a.cmp(&b);
            }
            unequal => unequal,
        };
        if self.value < 0 { magnitude.reverse() } else { magnitude }
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

impl fmt::Display for Quantity {
    /// The canonical form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        let kilo = Quantity::new(1024);
        let magnitude = Quantity { value: self.value.abs(), ..*self };
        if self.format == Format::Binary && magnitude >= kilo {
            let mut whole = *self;
            if whole.round_up(0)
                && let Some(factor) = u32::try_from(whole.scale).ok().and_then(|s| 10i128.checked_pow(s))
                && let Some(mut value) = whole.value.checked_mul(factor)
            {
                let mut times = 0;
                while value % 1024 == 0 {
                    value /= 1024;
                    times += 1;
                }
                let suffix =
                    if times == 0 { "" } else { BINARY_SUFFIXES.get(times - 1).map_or("", |(name, _)| name) };
                return write!(f, "{value}{suffix}");
            }
        }
        let mut number = self.stripped();
        while number.scale % 3 != 0 {
            number.value *= 10;
            number.scale -= 1;
        }
        write!(f, "{}", number.value)?;
        match self.format {
            Format::Exponent if number.scale == 0 => Ok(()),
            Format::Exponent => write!(f, "e{}", number.scale),
            // Beyond the last suffix Kubernetes writes none.
            _ => f.write_str(
                DECIMAL_SUFFIXES
                    .iter()
                    .find(|(_, scale)| *scale == number.scale)
                    .map_or("", |(name, _)| name),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantity_texts_become_canonical() {
        for (text, want) in [
            ("0", "0"),
            ("1", "1"),
            ("100m", "100m"),
            ("0.1", "100m"),
            ("1.5", "1500m"),
            ("1000m", "1"),
            ("1000", "1k"),
            ("1024", "1024"),
            ("1024Ki", "1Mi"),
            ("1000Ki", "1000Ki"),
            ("1.5Gi", "1536Mi"),
            ("0.5Gi", "512Mi"),
            ("0.5Ki", "512"),
            ("0.5Mi", "512Ki"),
            ("0.0001Ki", "102400u"),
            ("1Pi", "1Pi"),
            ("+5", "+5"),
            ("-5", "-5"),
            ("5e3", "5e3"),
            ("5E3", "5E3"),
            ("1e1", "10"),
            ("1e31", "10e30"),
            ("0.000000001", "1n"),
            ("0.0000000001", "1n"),
            ("1.0000000001", "1000000001n"),
            ("-0.0000000001", "-1n"),
            ("12345678901234567890", "12345678901234567890"),
            ("9223372036854775808Ki", "9223372036854775807"),
            ("16Ei", "9223372036854775807"),
            ("1000E", "1"),
            (".5", "500m"),
            (".", "0"),
            ("-0", "0"),
            ("1.", "1."),
            ("0.00Ki", "0"),
            ("1e-2000000000", "1e-9"),
            ("100k", "100k"),
            ("1000k", "1M"),
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(want), "{text}");
        }
        for text in ["", "a", "1.1.1", "1x", " 1", "1 ", "--1", "1Kib", "1mm"] {
            assert!(canonical(text).is_err(), "{text}");
        }
        assert_eq!(canonical("1mm"), Err(QuantityError::Suffix));
        assert_eq!(canonical("1x"), Err(QuantityError::Format));
    }

    #[test]
    fn quantity_arithmetic_retains_format() {
        let q = |text: &str| Quantity::parse(text).unwrap();
        let mut sum = q("100m");
        sum += q("1");
        assert_eq!(sum.to_string(), "1100m");
        sum -= q("2");
        assert_eq!(sum.to_string(), "-900m");
        let mut memory = Quantity::default();
        memory += q("1Gi");
        memory += q("512Mi");
        assert_eq!(memory.to_string(), "1536Mi");
        assert!(q("1Gi") > q("1G"));
        assert!(q("-1") < q("1m"));
        assert_eq!(q("1000m"), q("1"));
        assert!(q("1e100") > q("1e99"));
        assert_eq!(q("1500m").value(), 2);
        assert_eq!(q("-1500m").value(), -2);
        assert_eq!(q("1500m").milli_value(), 1500);
        assert_eq!(q("1500m").as_i64(), None);
        assert_eq!(q("2k").as_i64(), Some(2000));
        assert_eq!(q("1e300").value(), i64::MAX);
        assert_eq!(q("0.5").sign(), 1);
    }

    proptest! {
        #[test]
        fn any_text_parses_without_panic(text in "\\PC{0,40}") {
            let _ = canonical(&text);
        }

        #[test]
        fn cheap_canonical_test_has_no_false_positives(text in "0?[1-9]?[0-9]{0,3}(0|00|000|24)?(n|u|m||k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e3)") {
            if is_plain(&text) {
                let (quantity, keep) = parse(&text).unwrap();
                prop_assert!(keep || quantity.to_string() == text, "{}", text);
            }
        }

        #[test]
        fn canonical_form_is_stable(text in "[+-]?[0-9]{1,40}(\\.[0-9]{0,20})?(n|u|m||k|M|G|T|P|Ki|Mi|Gi|Ti|Pi|Ei|e[0-9]{1,2})") {
            let once = canonical(&text).unwrap().into_owned();
            let twice = canonical(&once).unwrap().into_owned();
            prop_assert_eq!(&twice, &once);
        }

        #[test]
        fn quantity_order_matches_numbers(a in any::<i32>(), b in any::<i32>(), m in any::<i32>()) {
            let milli = |n: i32| Quantity::from_milli(i64::from(n));
            prop_assert_eq!(milli(a).cmp(&milli(b)), a.cmp(&b));
            let mut sum = milli(a);
            sum += milli(m);
            prop_assert_eq!(sum.milli_value(), i64::from(a) + i64::from(m));
        }
    }
}
