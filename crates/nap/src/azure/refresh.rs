//! `nap azure catalogue refresh`: a catalogue from the live APIs, and what changed.

use std::fmt::Write as _;

use nap_azure::embedded::refresh::{self, Changes};

use super::live;
use crate::catalogue;
use crate::cli::RefreshArgs;
use crate::user_error::UserError;

/// Maximum number of sizes that are named for each kind of change.
const MAX_NAMES: usize = 20;

/// Rebuilds regions of the catalogue, writes it to a folder, and prints the changes.
pub async fn refresh(args: RefreshArgs) -> anyhow::Result<()> {
    let Some(live) = live::connect(&args.live)? else {
        let hint =
            "pass --subscription, or set AZURE_SUBSCRIPTION_ID, and log in as `nap run` does";
        return Err(UserError::new("--subscription: the list of sizes needs one", hint).into());
    };
    let mut sizes = catalogue::load(&args.catalogue)?.into_owned();
    for region in &args.regions {
        let before = sizes.clone();
        let found =
            refresh::refresh(&mut sizes, &live.arm, &live.prices, &live.subscription, region)
                .await
                .map_err(|error| live::failed(&format!("region {region}"), &error))?;
        if found.sizes == 0 {
            let message = format!("--region: no size of `{region}` has a price");
            let hint = "name a region such as eastus; of a sovereign cloud the price API may have \
                        none, and `nap plan --subscription ID` plans there with estimates";
            return Err(UserError::new(message, hint).into());
        }
        let changes = Changes::between(&before, &sizes, region);
        let text = report(region, found.sizes, found.unpriced, &changes);
        crate::output::write(format_args!("{text}"));
    }
    std::fs::create_dir_all(&args.folder)
        .map_err(|error| anyhow::anyhow!("--folder: {}: {error}", args.folder.display()))?;
    refresh::write_files(&sizes, &args.folder)?;
    let folder = args.folder.display();
    println!("written to {folder}; plan with it by `nap plan --catalogue {folder}`");
    Ok(())
}

fn report(region: &str, sizes: usize, unpriced: usize, changes: &Changes) -> String {
    let mut text = format!("{region}: {sizes} sizes with a price, {unpriced} without one\n");
    let mut list = |what: &str, items: Vec<String>| {
        if items.is_empty() {
            return;
        }
        let more = items.len().saturating_sub(MAX_NAMES);
        let mut shown = items[..items.len().min(MAX_NAMES)].join(", ");
        if more > 0 {
            let _ = write!(shown, ", … {more} more");
        }
        let _ = writeln!(text, "  {what} ({}): {shown}", items.len());
    };
    list("added", changes.added.clone());
    list("removed", changes.removed.clone());
    let prices = changes.prices.iter().map(|(name, old, new)| format!("{name} {old} -> {new}"));
    list("price changed by more than 5 %", prices.collect());
    if changes.is_empty() {
        text.push_str("  no changes\n");
    }
    text
}
