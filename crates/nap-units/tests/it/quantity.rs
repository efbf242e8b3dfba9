//! Tables of what Kubernetes does, and laws that hold for every quantity.

use nap_units::{Format, Quantity, Rounding};
use proptest::prelude::*;

fn read(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn quantities_print_in_canonical_form() {
    for (written, printed) in [
        // Every suffix.
        ("1n", "1n"),
        ("1u", "1u"),
        ("1m", "1m"),
        ("1", "1"),
        ("1k", "1k"),
        ("1M", "1M"),
        ("1G", "1G"),
        ("1T", "1T"),
        ("1P", "1P"),
        ("1E", "1E"),
        ("1Ki", "1Ki"),
        ("1Mi", "1Mi"),
        ("1Gi", "1Gi"),
        ("1Ti", "1Ti"),
        ("1Pi", "1Pi"),
        ("1Ei", "1Ei"),
        // The largest suffix that leaves no fraction.
        ("1.5Gi", "1536Mi"),
        ("0.5", "500m"),
        ("1024", "1024"),
        ("1000", "1k"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1024Ki", "1Mi"),
        ("1000Ki", "1000Ki"),
        ("0.001", "1m"),
        ("100000000", "100M"),
        // Binary suffixes only from 1024 on, and only for whole numbers.
        ("0.5Ki", "512"),
        ("0.001Ki", "1024m"),
        ("1023.5Ki", "1048064"),
        ("1.1Mi", "1153433600m"),
        ("-1Ki", "-1Ki"),
        ("-0.5Ki", "-512"),
        // Exponents keep their form.
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("1e-3", "1e-3"),
        ("12e4", "120e3"),
        ("100e0", "100"),
        ("1e+3", "1e3"),
        // Signs and odd spellings.
        ("-1", "-1"),
        ("+1", "1"),
        ("-100m", "-100m"),
        (".5", "500m"),
        ("5.", "5"),
        ("00012", "12"),
        ("0", "0"),
        ("-0", "0"),
        ("0Gi", "0"),
        ("0e9", "0"),
    ] {
        assert_eq!(read(written).to_string(), printed, "{written}");
    }
}

#[test]
fn exa_and_exponents_are_told_apart() {
    assert_eq!(read("1E").to_units(Rounding::Down), 1_000_000_000_000_000_000);
    assert_eq!(read("1E3").to_units(Rounding::Down), 1000);
    assert_eq!(read("1E").format(), Format::DecimalSi);
    assert_eq!(read("1E3").format(), Format::DecimalExponent);
    assert_eq!(read("1Ei").format(), Format::BinarySi);
}

#[test]
fn finer_than_a_nano_rounds_away_from_zero() {
    for (written, printed) in [
        ("0.0000000001", "1n"),
        ("-0.0000000001", "-1n"),
        ("1.0000000001", "1000000001n"),
        ("0.1n", "1n"),
        ("1e-10", "1e-9"),
        ("1e-999999999999", "1e-9"),
        ("0.0000000000000000000000000000000000000000000000000001Ki", "1n"),
        // 2^-30 of a Gi is exactly one: nothing to round, however many digits it takes to write.
        ("0.000000000931322574615478515625Gi", "1"),
        ("0.0000000009313225746154785156250Gi", "1"),
        ("0.0000000009313225746154785156251Gi", "1000000001n"),
    ] {
        assert_eq!(read(written).to_string(), printed, "{written}");
    }
}

#[test]
fn quantities_beyond_64_bits_saturate() {
    let most = "9223372036854775807";
    for written in [
        most,
        "9223372036854775808",
        "10E",
        "8Ei",
        "1e19",
        "1e2147483647",
        "1e99999999999999",
        "99999999999999999999999999999999999999999999999999Ei",
    ] {
        assert_eq!(read(written).to_string(), most, "{written}");
        assert_eq!(read(&format!("-{written}")).to_string(), format!("-{most}"), "-{written}");
        assert_eq!(read(written).to_units(Rounding::Up), i64::MAX);
        assert_eq!(read(written).to_milli(Rounding::Up), i64::MAX);
    }
    assert_eq!(read("7Ei").to_string(), "7Ei");
    assert_eq!(read("9223372036854775806").to_string(), "9223372036854775806");
}

#[test]
fn malformed_quantities_are_refused() {
    for text in [
        "", "+", "-", ".", "Ki", "m", "1.2.3", "1 Gi", " 1", "1 ", "1ki", "1K", "1g", "1mi",
        "1Gib", "1e", "1e+", "1e1.5", "1Ee", "0x10", "--1", "+-1", "1,5", "١", "1é", "NaN", "inf",
    ] {
        assert!(text.parse::<Quantity>().is_err(), "`{text}` was read");
    }
    let error = "1Gib".parse::<Quantity>().unwrap_err();
    assert_eq!(error.to_string(), "`1Gib` is not a quantity: its suffix is unknown");
}

#[test]
fn equality_and_order_go_by_value() {
    assert_eq!(read("1"), read("1000m"));
    assert_eq!(read("1Gi"), read("1073741824"));
    assert_eq!(read("1e3"), read("1k"));
    let sorted =
        ["-1Gi", "-1", "-1n", "0", "1n", "999m", "1", "1k", "1Ki", "1M", "1Mi", "1E", "1Ei"];
    assert!(sorted.map(read).is_sorted_by(|a, b| a < b));
}

#[test]
fn amounts_round_as_asked() {
    for (text, unit_up, unit_down, milli_up, milli_down) in [
        ("1500m", 2, 1, 1500, 1500),
        ("-1500m", -1, -2, -1500, -1500),
        ("1n", 1, 0, 1, 0),
        ("-1n", 0, -1, 0, -1),
        ("2", 2, 2, 2000, 2000),
    ] {
        let quantity = read(text);
        assert_eq!(quantity.to_units(Rounding::Up), unit_up, "{text}");
        assert_eq!(quantity.to_units(Rounding::Down), unit_down, "{text}");
        assert_eq!(quantity.to_milli(Rounding::Up), milli_up, "{text}");
        assert_eq!(quantity.to_milli(Rounding::Down), milli_down, "{text}");
    }
}

#[test]
fn json_may_hold_a_string_or_a_number() {
    for (json, printed) in [
        ("\"1.5Gi\"", "\"1536Mi\""),
        ("2", "\"2\""),
        ("-3", "\"-3\""),
        ("0.5", "\"500m\""),
        ("1e3", "\"1k\""),
    ] {
        let quantity: Quantity = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&quantity).unwrap(), printed, "{json}");
    }
    assert!(serde_json::from_str::<Quantity>("true").is_err());
    assert!(serde_json::from_str::<Quantity>("\"1Q\"").is_err());
}

proptest! {
    #[test]
    fn printed_quantities_parse_back(
        sign in "[+-]?",
        whole in "[0-9]{0,22}",
        fraction in "(\\.[0-9]{1,14})?",
        suffix in "n|u|m||k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,3}",
    ) {
        let text = format!("{sign}{whole}{fraction}{suffix}");
        if whole.is_empty() && fraction.is_empty() {
            prop_assert!(text.parse::<Quantity>().is_err());
            return Ok(());
        }
        let quantity = read(&text);
        let printed = quantity.to_string();
        prop_assert_eq!(read(&printed), quantity);
        prop_assert_eq!(read(&printed).to_string(), printed);
    }

    #[test]
    fn binary_suffixes_agree_with_multiplication(whole in 0i64..1_000_000, bits in 0u32..4) {
        let suffix = ["", "Ki", "Mi", "Gi"][bits as usize];
        prop_assert_eq!(read(&format!("{whole}{suffix}")), Quantity::from_units(whole << (10 * bits)));
        prop_assert_eq!(read(&format!("{whole}.5{suffix}")), Quantity::from_milli(((whole << (10 * bits)) * 1000) + (500 << (10 * bits))));
    }

    #[test]
    fn quantities_order_by_value(a in any::<i32>(), b in any::<i32>()) {
        let (x, y) = (Quantity::from_milli(i64::from(a)), read(&format!("{b}m")));
        prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        prop_assert_eq!(x == y, a == b);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,12}") {
        let _ = text.parse::<Quantity>();
    }
}
