//! Values that are a number or a percentage.

use objects::IntOrString;

/// Number, or percentage of `total`, rounded as specified. An invalid value counts as 0.
#[must_use]
pub fn scaled(value: &IntOrString, total: usize, round_up: bool) -> usize {
    match value {
        IntOrString::Int(number) => usize::try_from(*number).unwrap_or(0),
        IntOrString::String(text) => {
            let Some(percent) = text.strip_suffix('%').and_then(|digits| digits.parse::<usize>().ok()) else {
                return 0;
            };
            let product = total.saturating_mul(percent);
            if round_up { product.div_ceil(100) } else { product / 100 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentage_is_rounded_up_or_down() {
        let percent = |text: &str| IntOrString::String(text.into());
        assert_eq!(scaled(&IntOrString::Int(3), 10, true), 3);
        assert_eq!(scaled(&IntOrString::Int(-3), 10, true), 0);
        assert_eq!((scaled(&percent("25%"), 10, true), scaled(&percent("25%"), 10, false)), (3, 2));
        assert_eq!(scaled(&percent("x"), 10, true), 0);
    }
}
