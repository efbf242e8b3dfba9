//! The commit that a binary was built from, as far as that is known.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

/// The source by which the repository is found.
const MAIN: &str = "crates/nap/src/main.rs";

/// The commit of the repository that a binary's sources are in; `-dirty` if sources differ from
/// the commit or are newer than the binary. cargo writes the list of sources beside the binary.
pub(crate) fn of(binary: &Path) -> anyhow::Result<String> {
    let list = binary.with_extension("d");
    let text = std::fs::read_to_string(&list).with_context(|| {
        format!("{}: cargo's list of sources is missing, so the commit is unknown", list.display())
    })?;
    let sources = sources(&text);
    // Build scripts read files of other places too.
    let main = sources.iter().find(|source| source.ends_with(MAIN)).and_then(|path| path.parent());
    let folder = main.with_context(|| format!("{} does not name {MAIN}", list.display()))?;
    let root = PathBuf::from(git(folder, &["rev-parse", "--show-toplevel"])?);
    let commit = git(&root, &["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&root, &["status", "--porcelain", "--untracked-files=no", "--", "crates"])?;
    let built = std::fs::metadata(binary)?.modified()?;
    let newer = |source: &PathBuf| {
        let modified = std::fs::metadata(source).and_then(|file| file.modified());
        modified.map_or(true, |modified| modified > built)
    };
    let mut own = sources.iter().filter(|source| source.starts_with(&root));
    let right = changed.is_empty() && !own.any(newer);
    Ok(if right { commit } else { format!("{commit}-dirty") })
}

fn git(folder: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output()?;
    ensure!(output.status.success(), "git {arguments:?} in {} failed", folder.display());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Sources in a dep-info file: `target: source source …`, with `\\ ` for a space in a path.
fn sources(text: &str) -> Vec<PathBuf> {
    let Some((_, listed)) = text.lines().next().and_then(|line| line.split_once(": ")) else {
        return Vec::new();
    };
    let escaped = listed.replace("\\ ", "\0");
    escaped.split_whitespace().map(|path| PathBuf::from(path.replace('\0', " "))).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn list_of_sources_is_read() {
        let paths = sources("/t/nap: /a/main.rs /b\\ c/lib.rs\n");
        assert_eq!(paths, [PathBuf::from("/a/main.rs"), PathBuf::from("/b c/lib.rs")]);
        assert!(sources("").is_empty());
    }

    #[test]
    fn commit_is_that_of_the_binarys_repository_and_dirty_if_sources_are_newer() {
        let folder = std::env::temp_dir().join(format!("nap-commit-{}", std::process::id()));
        let repository = folder.join("repository");
        std::fs::create_dir_all(repository.join("crates/nap/src")).unwrap();
        let repository = repository.canonicalize().unwrap();
        let source = repository.join(MAIN);
        std::fs::write(&source, "fn main() {}").unwrap();
        git(&repository, &["init", "--quiet"]).unwrap();
        git(&repository, &["add", "."]).unwrap();
        let identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        let commit = ["commit", "--quiet", "--message", "first"];
        git(&repository, &[&identity[..], &commit[..]].concat()).unwrap();
        let head = git(&repository, &["rev-parse", "--short=12", "HEAD"]).unwrap();

        let binary = folder.join("nap");
        std::fs::write(&binary, "").unwrap();
        assert!(of(&binary).is_err(), "without its list of sources the commit is unknown");
        let list = format!("{}: /nonexistent {}\n", binary.display(), source.display());
        std::fs::write(folder.join("nap.d"), list).unwrap();
        let modified = |file: &Path| std::fs::metadata(file).unwrap().modified().unwrap();
        let set = |time: SystemTime| {
            std::fs::File::options().write(true).open(&binary).unwrap().set_modified(time).unwrap();
        };
        set(modified(&source) + Duration::from_secs(5));
        assert_eq!(of(&binary).unwrap(), head);
        set(modified(&source) - Duration::from_secs(5));
        assert_eq!(of(&binary).unwrap(), format!("{head}-dirty"), "older than its source");
        set(modified(&source) + Duration::from_secs(5));
        std::fs::write(&source, "fn main() { }").unwrap();
        assert_eq!(of(&binary).unwrap(), format!("{head}-dirty"), "differs from the commit");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
