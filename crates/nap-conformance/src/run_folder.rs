//! A folder for each run, so that runs side by side do not write to the files of one another.

use std::path::{Path, PathBuf};

const PREFIX: &str = "run-";

/// Creates the folder of this process and takes away copies of nap that dead runs left behind.
pub(crate) fn create(parent: &Path) -> anyhow::Result<PathBuf> {
    let folder = parent.join(format!("{PREFIX}{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    for entry in std::fs::read_dir(parent)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(process) = name.strip_prefix(PREFIX) else { continue };
        if path != folder && !Path::new("/proc").join(process).exists() {
            // Another run may do the same.
            let _ = close(&path);
        }
    }
    Ok(folder)
}

/// Copies a binary into a run's folder.
pub(crate) fn take(binary: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let copy = folder.join("nap");
    // A process with the same id may have left one that still runs.
    if copy.exists() {
        std::fs::remove_file(&copy)?;
    }
    std::fs::copy(binary, &copy)?;
    Ok(copy)
}

/// Ends a run: of its folder, only the remains of failed specs stay.
pub(crate) fn close(folder: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            std::fs::remove_file(entry.path())?;
        }
    }
    if std::fs::read_dir(folder)?.next().is_none() {
        std::fs::remove_dir(folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_have_folders_of_their_own_and_keep_only_remains() {
        let parent = std::env::temp_dir().join(format!("nap-run-folder-{}", std::process::id()));
        // No process has this id.
        let (dead, remains) = (parent.join("run-4194999"), parent.join("run-4194999/spec"));
        std::fs::create_dir_all(&remains).unwrap();
        let mine = create(&parent).unwrap();
        assert!(mine.ends_with(format!("run-{}", std::process::id())));
        std::fs::write(dead.join("nap"), "old").unwrap();
        let binary = parent.join("binary");
        std::fs::write(&binary, "nap").unwrap();
        let copy = take(&binary, &mine).unwrap();
        assert_eq!(copy.parent(), Some(mine.as_path()));
        assert_eq!(create(&parent).unwrap(), mine);
        assert!(copy.exists(), "a run that lives keeps its nap");
        assert!(!dead.join("nap").exists() && remains.exists());
        close(&mine).unwrap();
        assert!(!mine.exists());
        std::fs::remove_dir_all(&parent).unwrap();
    }
}
