//! Words of Azure's error texts, without the names of resources.
//!
//! A machine is named after its NodePool, which a user may call `stage`, `spot-jobs` or `zone-a`.
//! So texts are compared by whole words, and what names a resource is not among them.

use std::collections::BTreeSet;

/// Words after which a quoted text is the name of a resource.
const BEFORE_A_NAME: [&str; 6] = ["resource", "machine", "group", "cluster", "pool", "vm"];

/// The words of a text in lower case, the parts of words in camel case included.
#[derive(Debug, Default)]
pub(super) struct Words(BTreeSet<String>);

impl Words {
    /// The words of an error text of an operation, such as `create machine a`.
    pub(super) fn of(text: &str, operation: &str) -> Self {
        let machine = operation
            .split_once("machine ")
            .and_then(|(_, rest)| rest.split_whitespace().next().filter(|name| !name.is_empty()));
        let mut words = Self::default();
        let mut before = "";
        for piece in text.split(['\'', '"', '`']) {
            if !ends_with_any(before, &BEFORE_A_NAME) {
                let chunks =
                    piece.split(|end: char| end.is_whitespace() || ",;()[]{}".contains(end));
                let chunks = chunks.filter_map(without_place);
                for chunk in chunks.filter(|chunk| machine.is_none_or(|name| !chunk.contains(name)))
                {
                    words.add(chunk);
                }
            }
            before = piece;
        }
        words
    }

    /// Whether one of some words is in the text, in the singular or the plural.
    pub(super) fn has_any(&self, wanted: &[&str]) -> bool {
        wanted.iter().any(|word| self.0.contains(*word) || self.0.contains(&format!("{word}s")))
    }

    fn add(&mut self, chunk: &str) {
        for word in chunk.split(|letter: char| !letter.is_alphanumeric()) {
            let mut start = 0;
            for (at, pair) in word.as_bytes().windows(2).enumerate() {
                if !pair[0].is_ascii_uppercase() && pair[1].is_ascii_uppercase() {
                    self.0.extend(word.get(start..=at).map(str::to_lowercase));
                    start = at + 1;
                }
            }
            let last = word.get(start..).unwrap_or_default().to_lowercase();
            // `VMSizes`, `VMSKUs`
            self.0.extend(last.strip_prefix("vm").map(str::to_owned));
            self.0.insert(last);
            self.0.insert(word.to_lowercase());
        }
    }
}

/// A chunk of a text without the path of a resource id; `None` for the id of anything but a policy,
/// whose own name tells what it asks for.
fn without_place(chunk: &str) -> Option<&str> {
    match chunk.rsplit_once('/') {
        Some((path, name)) => path.to_lowercase().contains("/policy").then_some(name),
        None => Some(chunk),
    }
}

fn ends_with_any(text: &str, words: &[&str]) -> bool {
    let last = text.split_whitespace().next_back().unwrap_or_default();
    words.iter().any(|word| last.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_resources_are_no_words() {
        let operation = "create machine tag-region-abc12 and 3 others";
        for text in [
            "Resource 'stage-tag' was refused",
            "Resource \"tag\" was refused",
            "It doesn't allow the cluster 'tag'",
            "The VM aks-pool-tag-region-abc12-12345678-vm was refused",
            "/subscriptions/s/resourceGroups/tag/providers/x/machines/tag was refused",
            "stage and staging were refused",
        ] {
            assert!(!Words::of(text, operation).has_any(&["tag", "region"]), "{text}");
        }
    }

    #[test]
    fn what_a_policy_asks_for_is_found_in_its_name() {
        for text in [
            "disallowed by policy 'Require a tag on resources'",
            "identifiers: '[{\"policyAssignment\":{\"name\":\"Require Tags\"}}]'",
            "identifiers: RequireTagOwner.",
            "/subscriptions/s/providers/Microsoft.Authorization/policyAssignments/require-tag",
        ] {
            assert!(Words::of(text, "create machine a-abc12").has_any(&["tag"]), "{text}");
        }
        let has = |text: &str, word: &str| Words::of(text, "").has_any(&[word]);
        assert!(has("approved standardDSv5Family Cores", "family"));
        assert!(has("AllowedVMSizes", "size") && has("AllowedVMSKUs", "sku"));
    }
}
