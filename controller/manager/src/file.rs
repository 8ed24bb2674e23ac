//! Files that are named on the command line.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The file that an option names cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("cannot read {option} {}", path.display())]
    Read {
        option: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{option} {} has more than {limit} bytes", path.display())]
    TooLong {
        option: &'static str,
        path: PathBuf,
        limit: usize,
    },
}

/// The file whole, if it has no more than `limit` bytes: cut, it might be taken for another.
///
/// # Errors
///
/// It cannot be read, or is longer.
pub(crate) fn read(option: &'static str, path: &Path, limit: usize) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let at_most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)
        .and_then(|file| file.take(at_most).read_to_end(&mut bytes))
        .map_err(|source| FileError::Read {
            option,
            path: path.to_owned(),
            source,
        })?;
    if bytes.len() > limit {
        return Err(FileError::TooLong {
            option,
            path: path.to_owned(),
            limit,
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_not_cut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read("--file", &path, 5).unwrap(), b"12345");

        fs::write(&path, "123456").unwrap();
        let error = read("--file", &path, 5).unwrap_err();
        assert!(
            error.to_string().ends_with("has more than 5 bytes"),
            "{error}"
        );
    }
}
