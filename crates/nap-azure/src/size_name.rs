//! The grammar of VM size names: `NC24ads_A100_v4` is family N, subfamily C, 24 vCPUs, features
//! `ads`, accelerator A100, v4.

/// A parsed size name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeName {
    /// First letter.
    pub family: char,
    /// Capitals after the family.
    pub subfamily: String,
    /// vCPUs in the name; a constrained size has fewer.
    pub vcpus: u32,
    /// vCPUs of a constrained size, the number after a dash; `None` for other sizes.
    pub constrained: Option<u32>,
    /// Letters after the number.
    pub features: String,
    /// Accelerator in the name, or the one known for the size.
    pub accelerator: Option<String>,
    /// Digit after `v`.
    pub version: Option<char>,
}

/// Letters that may follow the number, each for a feature of the series.
const FEATURES: &str = "abcdefilmnoprstxP";

impl SizeName {
    /// Parses a name without `Standard_`. `None` if it does not follow the grammar.
    pub fn parse(size: &str) -> Option<Self> {
        let mut tokens = size.split('_');
        let (family, subfamily, vcpus, constrained, features) = head(tokens.next()?)?;
        let mut tail: Vec<&str> = tokens.collect();
        if tail.last() == Some(&"Promo") {
            tail.pop();
        }
        let mut version = None;
        if let Some(digit) = tail.last().and_then(|token| version_digit(token)) {
            version = Some(digit);
            tail.pop();
        }
        let mut accelerator = None;
        for token in tail {
            // `cc` marks confidential children, a bare number a memory variant, `NDR` and `xl` the
            // network.
            let digits = token.len() <= 2
                && token.bytes().all(|byte| byte.is_ascii_digit())
                && !token.is_empty();
            let ignored = digits || matches!(token, "cc" | "NDR" | "xl");
            if ignored {
                continue;
            }
            if accelerator.is_some() || !is_accelerator(token) {
                return None;
            }
            accelerator = Some(token.to_owned());
        }
        let accelerator = accelerator.or_else(|| implied_accelerator(size).map(str::to_owned));
        Some(Self { family, subfamily, vcpus, constrained, features, accelerator, version })
    }

    /// Series, such as `Dpls_v6`, without vCPUs and accelerator.
    pub fn series(&self) -> String {
        let version = self.version.map(|digit| format!("_v{digit}")).unwrap_or_default();
        format!("{}{}{}{version}", self.family, self.subfamily, self.features)
    }

    /// Generation; a size without a version is of the first.
    pub fn generation(&self) -> char {
        self.version.unwrap_or('1')
    }
}

fn head(token: &str) -> Option<(char, String, u32, Option<u32>, String)> {
    let letters = token.bytes().position(|byte| !byte.is_ascii_uppercase())?;
    if !(1..=3).contains(&letters) {
        return None;
    }
    let (capitals, rest) = token.split_at(letters);
    let digits = rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    let (number, rest) = rest.split_at(digits);
    let vcpus = number.parse().ok()?;
    let (constrained, features) = match rest.strip_prefix('-') {
        Some(rest) => {
            let digits = rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
            let (number, features) = rest.split_at(digits);
            (Some(number.parse().ok()?), features)
        }
        None => (None, rest),
    };
    let known = features.chars().all(|letter| FEATURES.contains(letter));
    if !known && !matches!(features, "C+" | "NP") {
        return None;
    }
    let family = capitals.chars().next()?;
    Some((family, capitals[1..].to_owned(), vcpus, constrained, features.to_owned()))
}

fn version_digit(token: &str) -> Option<char> {
    let mut characters = token.strip_prefix(['v', 'V'])?.chars();
    let digit = characters.next().filter(|digit| ('1'..='9').contains(digit))?;
    characters.next().is_none().then_some(digit)
}

/// Capitals, digits, perhaps capitals again: `A100`, `MI300X`, `RTXPRO6000BSE`.
fn is_accelerator(token: &str) -> bool {
    let rest = token.trim_start_matches(|letter: char| letter.is_ascii_uppercase());
    let digits = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
    rest.len() < token.len()
        && digits.len() < rest.len()
        && digits.chars().all(|letter| letter.is_ascii_uppercase())
}

/// Sizes that were named before accelerators became part of the name.
fn implied_accelerator(size: &str) -> Option<&'static str> {
    match size {
        "NC6s_v3" | "NC12s_v3" | "NC24s_v3" | "NC24rs_v3" | "ND40rs_v2" => Some("V100"),
        "ND96asr_v4" => Some("A100"),
        "NV12s_v3" | "NV24s_v3" | "NV48s_v3" => Some("M60"),
        "NV4as_v4" | "NV8as_v4" | "NV16as_v4" | "NV32as_v4" => Some("MI25"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        for (size, series, accelerator, generation) in [
            ("D4s_v5", "Ds_v5", None, '5'),
            ("D2", "D", None, '1'),
            ("NC24ads_A100_v4", "NCads_v4", Some("A100"), '4'),
            ("M416s_8_v2", "Ms_v2", None, '2'),
            ("M832is_16_v3", "Mis_v3", None, '3'),
            ("D128nlds_v6", "Dnlds_v6", None, '6'),
            ("M896ixds_24_v3", "Mixds_v3", None, '3'),
            ("D11_v2_Promo", "D_v2", None, '2'),
            ("NC6s_v3", "NCs_v3", Some("V100"), '3'),
            ("NC32ds_xl_RTXPRO6000BSE_v6", "NCds_v6", Some("RTXPRO6000BSE"), '6'),
        ] {
            let name = SizeName::parse(size).unwrap_or_else(|| panic!("{size}"));
            assert_eq!(name.series(), series, "{size}");
            assert_eq!(name.accelerator.as_deref(), accelerator, "{size}");
            assert_eq!(name.generation(), generation, "{size}");
        }
        assert_eq!(SizeName::parse("E8-4s_v5").unwrap().constrained, Some(4));
        for bad in
            ["", "D", "d4s_v5", "D4s_v10", "Standard_D4s_v5", "D4q_v5", "NC4_noib_v6", "ABCD4s"]
        {
            assert_eq!(SizeName::parse(bad), None, "{bad}");
        }
    }
}
