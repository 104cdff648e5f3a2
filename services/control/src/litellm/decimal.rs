//! Numbers of a JSON text, moved by powers of ten and never through a float.

use weir_domain::money::NanoUsd;
use weir_domain::price::Rate;

/// Beyond this an exponent is a mistake, and writing it out would only fill memory.
const LARGEST_EXPONENT: i32 = 40;

/// Dollars a token as the rate of a million.
pub(super) fn per_million(raw: &str) -> Result<Rate, String> {
    shifted(raw, 6)?.parse().map_err(|error| told(raw, &error))
}

/// Dollars for one of what is no token.
pub(super) fn dollars(raw: &str) -> Result<NanoUsd, String> {
    shifted(raw, 0)?.parse().map_err(|error| told(raw, &error))
}

/// A count, which the file also writes as `256000.0` or in quotes.
pub(super) fn whole(raw: &str) -> Result<i64, String> {
    weir_domain::money::parse_decimal(&shifted(raw, 0)?, 0).map_err(|error| told(raw, &error))
}

fn told(raw: &str, error: &dyn std::error::Error) -> String {
    format!("{raw} cannot be said exactly: {error}")
}

/// `raw` times 10^`places`, in plain digits.
fn shifted(raw: &str, places: i32) -> Result<String, String> {
    let not_a_number = || format!("{raw} is no number");
    let number = raw.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(raw);
    let (sign, unsigned) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let exponent: i32 = exponent.parse().map_err(|_| not_a_number())?;
    if exponent.abs() > LARGEST_EXPONENT {
        return Err(not_a_number());
    }
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if whole.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(not_a_number());
    }
    let length = i32::try_from(whole.len()).map_err(|_| not_a_number())?;
    let point = length + exponent + places;
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
    let Ok(at) = usize::try_from(point.max(0)) else { return Err(not_a_number()) };
    Ok(match digits.split_at_checked(at) {
        _ if point <= 0 => format!("{sign}0.{}{digits}", zeros(-point)),
        Some((whole, "")) => format!("{sign}{whole}"),
        Some((whole, fraction)) => format!("{sign}{whole}.{fraction}"),
        None => format!("{sign}{digits}{}", zeros(point - i32::try_from(digits.len()).unwrap_or(i32::MAX))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_keeps_every_digit() {
        for (raw, rate) in [
            ("4e-07", "0.4"),
            ("1.5E-6", "1.5"),
            ("0.0000025", "2.5"),
            ("0", "0"),
            ("0.0", "0"),
            ("3", "3000000"),
            ("1e-15", "0.000000001"),
            ("\"4e-07\"", "0.4"),
            ("1.25e+1", "12500000"),
        ] {
            assert_eq!(per_million(raw).map(|rate| rate.to_string()), Ok(rate.to_owned()), "{raw}");
        }
        assert_eq!(dollars("1e-2").map(|usd| usd.to_string()), Ok("0.01".to_owned()));
        assert_eq!((whole("256000.0"), whole("\"8192\""), whole("1e6")), (Ok(256_000), Ok(8_192), Ok(1_000_000)));
    }

    #[test]
    fn what_is_no_exact_amount_is_refused() {
        let too_fine = "2.9999900000000002e-06";
        let reason = format!("{too_fine} cannot be said exactly: `2.9999900000000002` has more than 9 decimal places");
        assert_eq!(per_million(too_fine), Err(reason));
        for raw in ["-1e-6", "1e-16", "1e41", "1e", "true", "null", "\"\"", ".5", "1.2.3", "[1]", "\"free\""] {
            assert!(per_million(raw).is_err(), "{raw}");
        }
        assert!(whole("0.5").is_err());
    }
}
