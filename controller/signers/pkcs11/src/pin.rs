//! The PIN file.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// The maximum size of the PIN file, in bytes.
const MAX_LEN: u64 = 256;

/// The permission bits of group and others.
const OTHERS: u32 = 0o077;

/// The permission of the group to read.
const GROUP_READS: u32 = 0o040;

/// The user ID of root.
const ROOT: u32 = 0;

/// The file does not contain a usable PIN. The signer does not try an unusable PIN, because a token counts failed
/// attempts, and locks itself after several of them.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the PIN in {}", path.display())]
pub(crate) struct PinError {
    path: PathBuf,
    source: PinErrorSource,
}

#[derive(Debug, thiserror::Error)]
enum PinErrorSource {
    #[error(transparent)]
    File(io::Error),
    #[error(
        "group or others have access to it (mode {0:04o}): restrict it to the signer with `chmod 0600`"
    )]
    Exposed(u32),
    #[error("it is longer than {MAX_LEN} bytes")]
    TooLong,
    #[error(
        "its first line is empty, and a login with an empty PIN would use one of the token's login attempts: write the \
         PIN to this line"
    )]
    Empty,
}

/// Reads the first line of the file.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<String>, PinError> {
    first_line(path).map_err(|source| PinError {
        path: path.to_owned(),
        source,
    })
}

fn first_line(path: &Path) -> Result<Zeroizing<String>, PinErrorSource> {
    let file = File::open(path).map_err(PinErrorSource::File)?;
    let found = file.metadata().map_err(PinErrorSource::File)?;
    let user = rustix::process::geteuid().as_raw();
    if is_exposed(found.mode(), found.uid(), user) {
        return Err(PinErrorSource::Exposed(found.mode() & 0o7777));
    }
    let capacity = usize::try_from(MAX_LEN).unwrap_or_default() + 1;
    // The capacity is large enough for the whole file, so that no reallocation leaves a copy of the PIN in memory.
    let mut text = Zeroizing::new(String::with_capacity(capacity));
    let read = file.take(MAX_LEN + 1).read_to_string(&mut text);
    let len = read.map_err(PinErrorSource::File)?;
    if len == capacity {
        return Err(PinErrorSource::TooLong);
    }
    let line = text.lines().next().unwrap_or_default();
    if line.trim().is_empty() {
        return Err(PinErrorSource::Empty);
    }
    Ok(Zeroizing::new(line.to_owned()))
}

/// Whether others can access a file with this mode and owner. If root owns the file and the signer runs as another
/// user, its group can read it. The signer has no other access to a Secret in a Pod with `fsGroup`, or to a file that
/// root provides.
fn is_exposed(mode: u32, owner: u32, user: u32) -> bool {
    let allowed = if owner == ROOT && user != ROOT {
        GROUP_READS
    } else {
        0
    };
    mode & OTHERS & !allowed != 0
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use kubelet_authenticator_test_support::process::Scratch;

    use super::*;

    fn read_file(text: &str, mode: u32) -> Result<Zeroizing<String>, PinErrorSource> {
        let scratch = Scratch::new("pin");
        let path = scratch.write("pin", text);
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        read(&path).map_err(|error| error.source)
    }

    #[test]
    fn only_the_first_line_of_a_pin_file_is_the_pin() {
        for text in ["648219", "648219\n", "648219\r\n", "648219\nof the token\n"] {
            assert_eq!(*read_file(text, 0o600).unwrap(), "648219", "{text:?}");
        }
        assert_eq!(*read_file("648219", 0o400).unwrap(), "648219");
        let longest = "1".repeat(256);
        assert_eq!(*read_file(&longest, 0o600).unwrap(), longest);
    }

    #[test]
    fn an_empty_pin_is_refused() {
        for text in ["", "\n", "\r\n", "  \n", "\n648219\n"] {
            let read = read_file(text, 0o600);
            assert!(matches!(read, Err(PinErrorSource::Empty)), "{text:?}");
        }
    }

    #[test]
    fn a_pin_file_readable_by_others_is_refused_with_a_remedy() {
        for mode in [0o640, 0o620, 0o604, 0o644, 0o660] {
            let error = read_file("648219", mode).unwrap_err();

            assert!(matches!(error, PinErrorSource::Exposed(found) if found == mode));
            let text = error.to_string();
            assert!(text.contains("chmod 0600"), "{text}");
            assert!(!text.contains("648219"), "{text}");
        }
    }

    #[test]
    fn only_a_file_of_root_lets_the_signers_group_read_the_pin() {
        for (mode, owner, user, expected) in [
            (0o100_440, 0, 65532, false),
            (0o100_640, 0, 65532, false),
            (0o100_440, 65532, 65532, true),
            (0o100_440, 0, 0, true),
            (0o100_460, 0, 65532, true),
            (0o100_444, 0, 65532, true),
            (0o100_400, 65532, 65532, false),
        ] {
            assert_eq!(
                is_exposed(mode, owner, user),
                expected,
                "{mode:o} {owner} {user}"
            );
        }
    }

    #[test]
    fn a_file_without_a_pin_is_refused() {
        let long = read_file(&"1".repeat(257), 0o600);
        assert!(matches!(long, Err(PinErrorSource::TooLong)));
        let absent = read(Path::new("/nowhere/pin")).unwrap_err();
        assert!(matches!(absent.source, PinErrorSource::File(_)));
        assert_eq!(absent.to_string(), "cannot read the PIN in /nowhere/pin");
    }
}
