//! Machine names: from a NodeClaim's name, and back from a provider id.

use nap_cloud::{CloudError, ErrorClass};

/// Longest machine name that the API accepts, in characters.
const MAX_NAME: usize = 34;

/// Machine name of a NodeClaim: its own name, or a prefix with a hash if that is too long.
pub fn machine_name(claim: &str) -> Result<String, CloudError> {
    if claim.len() <= MAX_NAME && !claim.is_empty() {
        return Ok(claim.to_owned());
    }
    let split = claim.rfind('-').filter(|_| claim.is_ascii());
    let parts =
        split.map(|at| claim.split_at(at)).filter(|(_, suffix)| suffix.len() + 6 < MAX_NAME);
    let Some((prefix, suffix)) = parts else {
        let message = format!(
            "`{claim}` is longer than {MAX_NAME} characters and has no short suffix after a dash"
        );
        return Err(CloudError::new(ErrorClass::Invalid, "name a machine", "InvalidName", message));
    };
    let (kept, rest) = prefix.split_at((MAX_NAME - suffix.len() - 6).min(prefix.len()));
    let mut hash = fnv1(rest);
    let mut digits = [b'0'; 6];
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[usize::try_from(hash % 36).unwrap_or(0)];
        hash /= 36;
    }
    Ok(format!("{kept}{}{suffix}", String::from_utf8_lossy(&digits)))
}

/// Machine name in a provider id or VM name of the form `aks-<pool>-<machine>-########-vm`, in any
/// case and with or without digits at its end; `None` for any other form.
pub fn machine_name_of(provider_id: &str, pool: &str) -> Option<String> {
    let vm = provider_id.rsplit('/').next()?.to_ascii_lowercase();
    let vm = vm.trim_end_matches(|end: char| end.is_ascii_digit());
    let inner =
        vm.strip_prefix("aks-")?.strip_prefix(pool)?.strip_prefix('-')?.strip_suffix("-vm")?;
    let (name, digits) = inner.rsplit_once('-')?;
    (digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| name.to_owned())
}

/// Machine name in the ARM id of a machine; `None` if it is not one of the pool at a path.
pub fn machine_name_in(resource_id: &str, pool_path: &str) -> Option<String> {
    let (pool, rest) = resource_id.split_at_checked(pool_path.len())?;
    let name = rest.strip_prefix('/')?.split_once('/')?;
    let is_machine = pool.eq_ignore_ascii_case(pool_path)
        && name.0.eq_ignore_ascii_case("machines")
        && !name.1.is_empty()
        && !name.1.contains('/');
    is_machine.then(|| name.1.to_ascii_lowercase())
}

/// Whether a provider id is that of a VM in a resource group, of whatever name.
pub fn is_vm_in(provider_id: &str, resource_group: &str) -> bool {
    let Some(path) = provider_id.strip_prefix("azure://") else { return false };
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    matches!(
        parts.as_slice(),
        [_, _, groups, group, _, _, kind, _]
            if groups.eq_ignore_ascii_case("resourceGroups")
                && group.eq_ignore_ascii_case(resource_group)
                && kind.eq_ignore_ascii_case("virtualMachines")
    )
}

/// 64-bit FNV-1 (multiply, then xor), the hash that the incumbent shortens names with. The `fnv`
/// crate is FNV-1a (xor, then multiply), which gives other names.
pub(crate) fn fnv1(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_claim_names_are_shortened_as_the_incumbent_does() {
        assert_eq!(machine_name("default-abc12").unwrap(), "default-abc12");
        assert_eq!(
            machine_name("thisisaverylongnodepoolnamethatexceeds-a1b2c").unwrap(),
            "thisisaverylongnodepooap1tx8-a1b2c"
        );
        assert_eq!(machine_name(&"x".repeat(40)).unwrap_err().class, ErrorClass::Invalid);
    }

    #[test]
    fn provider_ids_lead_back_to_machine_names() {
        let id = "azure:///subscriptions/s/resourceGroups/mc/providers/Microsoft.Compute/virtualMachines/aks-aksmanagedap-default-abc12-12345678-vm";
        assert_eq!(machine_name_of(id, "aksmanagedap").as_deref(), Some("default-abc12"));
        let upper = id.to_ascii_uppercase();
        assert_eq!(machine_name_of(&upper, "aksmanagedap").as_deref(), Some("default-abc12"));
        let numbered = format!("{id}0");
        assert_eq!(machine_name_of(&numbered, "aksmanagedap").as_deref(), Some("default-abc12"));
        for other in ["x/aks-default-abc12", "x/aks-aksmanagedap-default-abc12-1234567-vm"] {
            assert_eq!(machine_name_of(&format!("azure:///{other}"), "aksmanagedap"), None);
        }
    }

    #[test]
    fn machine_ids_lead_to_machine_names_of_the_own_pool_only() {
        let pool = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/c/agentPools/p";
        let name = |id: &str| machine_name_in(id, pool);
        let id = format!("{pool}/machines/default-abc12");
        assert_eq!(name(&id).as_deref(), Some("default-abc12"));
        assert_eq!(name(&id.to_uppercase()).as_deref(), Some("default-abc12"));
        assert_eq!(name(&id.replace("agentPools/p", "agentPools/q")), None);
        assert_eq!(name(&format!("{pool}/machines/")), None);
        assert_eq!(name(&format!("{pool}/machines/a/b")), None);
        assert_eq!(name("ä"), None);
    }

    #[test]
    fn a_vm_is_told_from_other_provider_ids_by_its_resource_group() {
        let id = "azure:///subscriptions/s/resourceGroups/mc/providers/Microsoft.Compute/virtualMachines/aks-default-abc12";
        assert!(is_vm_in(id, "MC"));
        assert!(!is_vm_in(id, "other"));
        assert!(!is_vm_in("Provider:///AZ/i-0123456789", "MC"));
    }
}
