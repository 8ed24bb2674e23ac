//! The address of an external signer.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use kubelet_attestation::ensure;

/// The maximum length of a socket path that the kernel accepts (`sun_path`), without the terminating zero.
const MAX_PATH_LEN: usize = 107;

/// The text that follows the path of a signer that also signs serving certificates.
const KUBELET_SERVING: &str = ",kubelet-serving";

/// The Unix socket of an external signer: `unix:///run/signer/signer.sock`. If the path is followed by
/// `,kubelet-serving`, the controller also signs for `kubernetes.io/kubelet-serving` through the signer.
///
/// Remote signers are not supported, because only file permissions restrict which programs can sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignerEndpoint {
    path: PathBuf,
    signs_kubelet_serving: bool,
}

/// The text is not a signer endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be unix:// and the absolute path of a socket (at most {MAX_PATH_LEN} bytes), optionally followed by \
     {KUBELET_SERVING}"
)]
pub struct InvalidEndpoint;

impl SignerEndpoint {
    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the controller signs for `kubernetes.io/kubelet-serving` through the signer.
    pub fn signs_kubelet_serving(&self) -> bool {
        self.signs_kubelet_serving
    }
}

impl FromStr for SignerEndpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let text = text.strip_prefix("unix://").ok_or(InvalidEndpoint)?;
        let serving = text.strip_suffix(KUBELET_SERVING);
        let path = serving.unwrap_or(text);
        let is_name = path.len() > 1 && path.len() <= MAX_PATH_LEN && !path.contains('\0');
        ensure!(path.starts_with('/') && is_name, InvalidEndpoint);
        Ok(Self {
            path: PathBuf::from(path),
            signs_kubelet_serving: serving.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_absolute_path_that_the_kernel_accepts() {
        let endpoint: SignerEndpoint = "unix:///run/signer.sock".parse().unwrap();
        assert_eq!(endpoint.path(), Path::new("/run/signer.sock"));
        assert!(!endpoint.signs_kubelet_serving());
        let serving: SignerEndpoint = "unix:///run/signer.sock,kubelet-serving".parse().unwrap();
        assert_eq!(serving.path(), endpoint.path());
        assert!(serving.signs_kubelet_serving());
        let longest = format!("unix:///{}", "a".repeat(MAX_PATH_LEN - 1));
        assert!(longest.parse::<SignerEndpoint>().is_ok());

        let longer = format!("{longest}a");
        for text in [
            "",
            "/run/signer.sock",
            "unix://",
            "unix:///",
            "unix:///,kubelet-serving",
            "unix://run/signer.sock",
            "unix:/run/signer.sock",
            "unix:///run/\0",
            "http://127.0.0.1:1",
            &longer,
        ] {
            assert_eq!(text.parse::<SignerEndpoint>(), Err(InvalidEndpoint));
        }
    }
}
