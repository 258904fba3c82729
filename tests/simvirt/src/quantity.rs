//! Just enough of Kubernetes quantities for memory sizes and CPU counts.

/// A quantity in thousandths of its unit.
pub(crate) fn milli(text: &str) -> Option<i128> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-' || c == '+')).unwrap_or(text.len());
    let (digits, suffix) = text.split_at_checked(split)?;
    let factor: i128 = match suffix {
        "m" => 1,
        "" => 1_000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "Ki" => 1_000 << 10,
        "Mi" => 1_000 << 20,
        "Gi" => 1_000 << 30,
        "Ti" => 1_000 << 40,
        _ => return None,
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut value = whole.parse::<i128>().ok()?.checked_mul(factor)?;
    if !fraction.is_empty() {
        let scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        value += fraction.parse::<i128>().ok()?.checked_mul(factor)? / scale;
    }
    Some(value)
}

/// A number of bytes with the largest binary suffix that divides it.
pub(crate) fn bytes(count: i128) -> String {
    for (shift, suffix) in [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
        if count != 0 && count % (1 << shift) == 0 {
            return format!("{}{suffix}", count >> shift);
        }
    }
    count.to_string()
}
