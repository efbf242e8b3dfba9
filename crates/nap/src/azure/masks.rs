//! Masks of names, ids and addresses in text that a user shares.

use nap_azure::AzureConfig;

/// Replaces what identifies a subscription: its id, the names of its resource groups and the
/// cluster, every UUID, every IPv4 address and every token.
pub(super) struct Masks {
    /// Longest first.
    names: Vec<(String, &'static str)>,
}

impl Masks {
    pub(super) fn new(config: &AzureConfig) -> Self {
        let mut names = vec![
            (config.subscription_id.to_lowercase(), "<subscription>"),
            (config.node_resource_group.to_lowercase(), "<node-resource-group>"),
            (config.resource_group.to_lowercase(), "<resource-group>"),
            (config.cluster_name.to_lowercase(), "<cluster>"),
        ];
        names.retain(|(name, _)| !name.is_empty());
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Self { names }
    }

    /// The text with everything replaced, word by word.
    pub(super) fn apply(&self, text: &str) -> String {
        let mut masked = String::with_capacity(text.len());
        let mut word = String::new();
        for letter in text.chars() {
            if is_word(letter) {
                word.push(letter);
                continue;
            }
            masked.push_str(&self.mask_word(&word));
            word.clear();
            masked.push(letter);
        }
        masked.push_str(&self.mask_word(&word));
        masked
    }

    fn mask_word(&self, word: &str) -> String {
        // A sentence may end with a name.
        let trimmed = word.trim_end_matches('.');
        let end = &word[trimmed.len()..];
        let lower = trimmed.to_lowercase();
        if let Some((_, mask)) = self.names.iter().find(|(name, _)| *name == lower) {
            return format!("{mask}{end}");
        }
        let mask = if is_uuid(trimmed) {
            "<id>"
        } else if trimmed.parse::<std::net::Ipv4Addr>().is_ok() {
            "<address>"
        } else if trimmed.starts_with("eyJ") && trimmed.len() > 40 {
            "<token>"
        } else {
            return word.to_owned();
        };
        format!("{mask}{end}")
    }
}

/// Letters of names in Azure.
fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.')
}

fn is_uuid(word: &str) -> bool {
    let lengths: Vec<usize> = word.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12]
        && word.chars().all(|letter| letter == '-' || letter.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ids_addresses_and_tokens_are_masked() {
        let config =
            AzureConfig::new("0f0e0d0c-0000-1111-2222-abcdefabcdef", "prod-rg", "shop", "eastus");
        let masks = Masks::new(&config);
        let token = format!("eyJ{}", "a".repeat(50));
        for (text, expected) in [
            (
                "/subscriptions/0F0E0D0C-0000-1111-2222-ABCDEFABCDEF/resourceGroups/prod-rg/x",
                "/subscriptions/<subscription>/resourceGroups/<resource-group>/x",
            ),
            ("MC_prod-rg_shop_eastus is gone.", "<node-resource-group> is gone."),
            ("cluster shop.", "cluster <cluster>."),
            ("shopping in prod-rg-2 at 1.34.1", "shopping in prod-rg-2 at 1.34.1"),
            ("by 11111111-2222-3333-4444-555555555555", "by <id>"),
            ("via 10.9.0.4, 10.1.0.0/24", "via <address>, <address>/24"),
            (&format!("Bearer {token}"), "Bearer <token>"),
        ] {
            assert_eq!(masks.apply(text), expected);
        }
    }
}
