//! Reads a kubeconfig and the files to which it refers.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use kubelet_attestation::kubeconfig::{Cluster, Exec, Kubeconfig as Document, Policy, no_files};
pub use kubelet_attestation::kubeconfig::{
    ClusterEndpoint, EndpointFields, InvalidKubeconfig, Login, Refused,
};
pub(super) use kubelet_attestation::kubeconfig::{Identity, identity};
use zeroize::Zeroizing;

use crate::exec::{EXEC_INFO, ExecCluster};
use crate::failure::Failure;
use crate::secret::Secret;

/// A kubeconfig that cannot be used. Errors never contain credentials.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    /// The file, or a file to which it refers, cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The file is not a kubeconfig, or a field is not accepted.
    #[error(transparent)]
    Invalid(#[from] InvalidKubeconfig),
}

impl KubeconfigError {
    /// Whether the kubeconfig `file` is missing. The result is false if only a file to which the kubeconfig refers is
    /// missing.
    pub fn is_absence_of(&self, file: &Path) -> bool {
        matches!(self, Self::Unreadable { source, path }
            if source.kind() == io::ErrorKind::NotFound && path == file)
    }
}

impl From<InvalidKubeconfig> for Failure {
    fn from(error: InvalidKubeconfig) -> Self {
        KubeconfigError::from(error).into()
    }
}

/// A cluster, and the login for it.
#[derive(Debug)]
pub struct Kubeconfig {
    /// The cluster of the current context.
    pub endpoint: ClusterEndpoint,
    /// The user of the current context.
    pub login: Login,
}

impl Kubeconfig {
    /// Reads the cluster and the user of the current context.
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let document = parse(path)?;
        Ok(Self {
            endpoint: document.endpoint(beside(path))?,
            login: document.login(beside(path))?,
        })
    }

    /// Reads only the cluster of the current context. The user is ignored, because it might be this program.
    pub fn read_endpoint(path: &Path) -> Result<ClusterEndpoint, KubeconfigError> {
        parse(path)?.endpoint(beside(path))
    }

    /// The cluster of a kubeconfig whose user has a plugin; `None` without a plugin, or if the kubeconfig is missing or
    /// invalid.
    pub(crate) fn read_endpoint_of_plugin(path: &Path) -> Option<ClusterEndpoint> {
        let document = parse(path).ok()?;
        document.exec().ok()??;
        document.endpoint(beside(path)).ok()
    }

    /// Returns the text with `program` as the command of the exec plugin of the current context's user, and otherwise
    /// unchanged; `None` if the text does not contain `command` literally.
    pub(crate) fn with_exec_command(
        path: &Path,
        command: &str,
        program: &str,
    ) -> Result<Option<Zeroizing<String>>, KubeconfigError> {
        let text = read_text(path)?;
        let runs_program = |changed: &Zeroizing<String>| {
            let document = Document::parse("", changed.as_bytes(), Policy::Machine);
            let exec = document.and_then(|document| Ok(document.exec()?.cloned()));
            exec.is_ok_and(|exec| exec.and_then(|it| it.command).as_deref() == Some(program))
        };
        // Other entries and comments can contain the same text, so try each occurrence.
        let mut changed = text.match_indices(command).map(|(at, _)| {
            let (before, rest) = text.split_at(at);
            let after = rest.strip_prefix(command).unwrap_or_default();
            Zeroizing::new([before, program, after].concat())
        });
        Ok(changed.find(runs_program))
    }

    /// Returns the command of the exec plugin of the current context's user; `None` if the user has no plugin.
    pub fn read_exec_command(path: &Path) -> Result<Option<String>, KubeconfigError> {
        let exec = ExecUser::read(path)?.exec;
        Ok(exec.map(|exec| exec.command.unwrap_or_default()))
    }
}

/// The user in a kubeconfig's current context, with the fields about plugins.
#[derive(Debug)]
pub(crate) struct ExecUser {
    /// The plugin.
    pub(crate) exec: Option<Exec>,
    /// Whether the user has a token or a certificate, which client-go would use instead of the plugin.
    pub(crate) has_credential: bool,
}

impl ExecUser {
    /// Reads the user of the current context.
    pub(crate) fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let document = parse(path)?;
        Ok(Self {
            exec: document.exec()?.cloned(),
            has_credential: document.has_credential()?,
        })
    }
}

fn parse(path: &Path) -> Result<Document, KubeconfigError> {
    let text = read_text(path)?;
    let document = path.display().to_string();
    Ok(Document::parse(
        &document,
        text.as_bytes(),
        Policy::Machine,
    )?)
}

/// Reads a file to which the kubeconfig refers. A relative path starts at the kubeconfig's directory.
fn beside(path: &Path) -> impl Fn(&str) -> Result<Zeroizing<Vec<u8>>, KubeconfigError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    |file| read_file(&folder.join(file))
}

/// Reads a text file of limited length.
pub(crate) fn read_text(path: &Path) -> Result<Zeroizing<String>, KubeconfigError> {
    let bytes = read_file(path)?;
    match str::from_utf8(&bytes) {
        Ok(text) => Ok(Zeroizing::new(text.to_owned())),
        Err(_) => Err(KubeconfigError::Unreadable {
            path: path.to_owned(),
            source: io::Error::new(io::ErrorKind::InvalidData, Refused::NotUtf8),
        }),
    }
}

/// Reads a file of limited length.
fn read_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, KubeconfigError> {
    let limit = Policy::Machine.max_len();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Zeroizing::default();
    File::open(path)
        .and_then(|file| file.take(most).read_to_end(&mut bytes))
        .map_err(|source| KubeconfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
    if bytes.len() > limit {
        let place = path.display().to_string();
        let why = Refused::TooLong(limit);
        return Err(InvalidKubeconfig { place, why }.into());
    }
    Ok(bytes)
}

/// The time of the last change to the file or to its name. Unlike the time of the last write, it cannot be copied from
/// another file.
pub(crate) fn changed_at(path: &Path) -> Option<(i64, i64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ctime(), metadata.ctime_nsec()))
}

impl ExecCluster<'_> {
    /// Returns the endpoint of the cluster.
    pub fn endpoint(&self) -> Result<ClusterEndpoint, InvalidKubeconfig> {
        let owned = |text: &Cow<'_, str>| text.clone().into_owned();
        let cluster = Cluster {
            server: Some(owned(&self.server)),
            tls_server_name: self.tls_server_name.as_ref().map(owned),
            insecure_skip_tls_verify: Some(self.insecure_skip_tls_verify),
            certificate_authority: None,
            certificate_authority_data: self.certificate_authority_data.as_ref().map(owned),
            proxy_url: self.proxy_url.as_ref().map(owned).map(Secret::new),
        };
        let place = format!("{EXEC_INFO}: spec.cluster");
        cluster.endpoint(Policy::Machine, &place, no_files)
    }
}

#[cfg(test)]
mod tests;
