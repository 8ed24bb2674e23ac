//! Files from the command line.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::error::{BoxError, explain};

/// Reads a file of at most `limit` bytes.
///
/// # Errors
///
/// Returns an error if the file cannot be read, or if it exceeds the limit.
pub(crate) fn read(option: &'static str, path: &Path, limit: usize) -> Result<Vec<u8>, BoxError> {
    let mut bytes = Vec::new();
    let at_most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)
        .and_then(|file| file.take(at_most).read_to_end(&mut bytes))
        .map_err(explain(format!("cannot read {option} {}", path.display())))?;
    if bytes.len() > limit {
        return Err(format!("{option} {} is larger than {limit} bytes", path.display()).into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_over_its_limit_is_refused_instead_of_truncated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "12345").unwrap();
        assert_eq!(read("--file", &path, 5).unwrap(), b"12345");

        fs::write(&path, "123456").unwrap();
        let error = read("--file", &path, 5).unwrap_err();
        assert!(
            error.to_string().ends_with("is larger than 5 bytes"),
            "{error}"
        );
    }
}
