//! Reads a kubeconfig and the files that it names.

use std::fs::File;
use std::io::Read;
use std::mem;
use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use serde_path_to_error::Track;
use zeroize::Zeroizing;

use super::endpoint::{ClusterEndpoint, EndpointFields, Origin};
use super::error::{KubeconfigError, Refused};
use super::login::{self, Login};
use super::wire::{Contents, Context, Named, User};
use crate::secret::Secret;

/// Ten times a CA bundle, a certificate and a key in base64.
const MAX_FILE_LEN: u64 = 1024 * 1024;

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
        let document = Document::read(path)?;
        let context = document.context()?;
        Ok(Self {
            endpoint: document.endpoint(context)?,
            login: document.login(context)?,
        })
    }

    /// Reads only the cluster of the current context. Its user does not matter, and may be this
    /// program.
    pub fn read_endpoint(path: &Path) -> Result<ClusterEndpoint, KubeconfigError> {
        let document = Document::read(path)?;
        document.endpoint(document.context()?)
    }

    /// The command of the exec plugin of the current context's user. `None` if the user has no
    /// plugin.
    pub fn read_exec_command(path: &Path) -> Result<Option<String>, KubeconfigError> {
        let document = Document::read(path)?;
        let user = document.user(document.context()?)?;
        let exec = user.exec.as_ref();
        Ok(exec.map(|exec| exec.command.clone().unwrap_or_default()))
    }
}

/// A kubeconfig and its path.
struct Document {
    path: PathBuf,
    contents: Contents,
}

impl Document {
    fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let text = read_text(path)?;
        // A snippet of the file in an error could contain a token.
        let options = serde_saphyr::options! { with_snippet: false };
        let mut track = Track::new();
        let parsed =
            serde_saphyr::with_deserializer_from_str_with_options(&text, options, |yaml| {
                Contents::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
            });
        let contents = parsed.map_err(|error| {
            let location = error.location();
            KubeconfigError::NotAKubeconfig {
                path: path.to_owned(),
                line: location.map_or(1, |location| location.line()),
                column: location.map_or(1, |location| location.column()),
                field: track.path().to_string(),
            }
        })?;
        Ok(Self {
            path: path.to_owned(),
            contents,
        })
    }

    fn context(&self) -> Result<&Context, KubeconfigError> {
        let current = self.contents.current_context.as_deref().unwrap_or_default();
        if current.is_empty() {
            return Err(KubeconfigError::NoContext {
                path: self.path.clone(),
            });
        }
        self.find(
            self.contents.contexts.as_deref(),
            "context",
            current,
            "current-context",
        )
    }

    fn endpoint(&self, context: &Context) -> Result<ClusterEndpoint, KubeconfigError> {
        let name = &context.cluster;
        let cluster = self.find(
            self.contents.clusters.as_deref(),
            "cluster",
            name,
            "the current context",
        )?;
        let origin = self.origin("cluster", name);
        if cluster.insecure_skip_tls_verify {
            return Err(origin.refuse("insecure-skip-tls-verify", Refused::SkipsVerification));
        }
        let (data, file) = (
            &cluster.certificate_authority_data,
            &cluster.certificate_authority,
        );
        let field = match (filled(data.as_deref()), filled(file.as_deref())) {
            (None, Some(_)) => "certificate-authority",
            (Some(_), _) | (None, None) => "certificate-authority-data",
        };
        let ca_pem = self.pem(
            &origin,
            field,
            data.as_deref(),
            file.as_deref(),
            Refused::NotCertificates,
        )?;
        let fields = EndpointFields {
            server: cluster.server.clone().unwrap_or_default(),
            ca_pem: ca_pem.unwrap_or_default(),
            tls_server_name: cluster.tls_server_name.clone(),
            proxy_url: cluster.proxy_url.clone(),
        };
        ClusterEndpoint::check(fields, &origin, field)
    }

    fn user(&self, context: &Context) -> Result<&User, KubeconfigError> {
        self.find(
            self.contents.users.as_deref(),
            "user",
            &context.user,
            "the current context",
        )
    }

    fn login(&self, context: &Context) -> Result<Login, KubeconfigError> {
        let user = self.user(context)?;
        let origin = self.origin("user", &context.user);
        if let Some((field, why)) = user.refused() {
            return Err(origin.refuse(field, why));
        }
        if let Some(login) = self.client_certificate(user, &origin)? {
            return Ok(login);
        }
        match self.token(user, &origin)? {
            Some(token) => Ok(Login::Token(token)),
            None => Err(origin.refuse("user", Refused::NoCredential)),
        }
    }

    /// A client certificate wins over a token, as in an API server that gets both.
    fn client_certificate(
        &self,
        user: &User,
        origin: &Origin,
    ) -> Result<Option<Login>, KubeconfigError> {
        let chain = self.pem(
            origin,
            "client-certificate-data",
            user.client_certificate_data.as_deref(),
            user.client_certificate.as_deref(),
            Refused::NotCertificates,
        )?;
        let key = self.pem(
            origin,
            "client-key-data",
            user.client_key_data
                .as_ref()
                .map(|data| data.expose().as_str()),
            user.client_key.as_deref(),
            Refused::NotAKey,
        )?;
        match (chain, key) {
            (Some(chain_pem), Some(key_pem)) => {
                // The kubelet keeps both in one file, so the key is left out here.
                let chain_pem = login::certificates_of(&Zeroizing::new(chain_pem));
                let key_pem = Secret::new(key_pem);
                login::identity(&chain_pem, &key_pem)
                    .map_err(|(field, why)| origin.refuse(field, why))?;
                Ok(Some(Login::ClientCertificate { chain_pem, key_pem }))
            }
            (Some(_), None) => Err(origin.refuse("client-key", Refused::Half)),
            (None, Some(key_pem)) => {
                drop(Secret::new(key_pem));
                Err(origin.refuse("client-certificate", Refused::Half))
            }
            (None, None) => Ok(None),
        }
    }

    /// The content of `data`, or else of `file`. As in client-go, the kubeconfig itself wins.
    fn pem(
        &self,
        origin: &Origin,
        field: &'static str,
        data: Option<&str>,
        file: Option<&str>,
        otherwise: Refused,
    ) -> Result<Option<String>, KubeconfigError> {
        match (filled(data), filled(file)) {
            (Some(data), _) => origin.text_from_base64(field, data, otherwise).map(Some),
            (None, Some(file)) => Ok(Some(mem::take(&mut *self.read_beside(file)?))),
            (None, None) => Ok(None),
        }
    }

    /// The file wins over the token. As in client-go, an unreadable file gives way to the token.
    fn token(
        &self,
        user: &User,
        origin: &Origin,
    ) -> Result<Option<Secret<String>>, KubeconfigError> {
        if let Some(file) = filled(user.token_file.as_deref()) {
            match (self.read_beside(file), &user.token) {
                (Ok(text), _) => {
                    let token = login::token(&text);
                    return token
                        .map(Some)
                        .map_err(|why| origin.refuse("tokenFile", why));
                }
                (Err(error), None) => return Err(error),
                (Err(_), Some(_)) => {}
            }
        }
        let Some(token) = &user.token else {
            return Ok(None);
        };
        login::token(token.expose())
            .map(Some)
            .map_err(|why| origin.refuse("token", why))
    }

    fn find<'a, T>(
        &self,
        list: Option<&'a [Named<T>]>,
        kind: &'static str,
        name: &str,
        by: &str,
    ) -> Result<&'a T, KubeconfigError> {
        let mut found = list
            .unwrap_or_default()
            .iter()
            .filter(|named| named.name == name);
        match (found.next(), found.next()) {
            (Some(only), None) => Ok(&only.value),
            (Some(_), Some(_)) => Err(KubeconfigError::Ambiguous {
                path: self.path.clone(),
                kind,
                name: name.to_owned(),
            }),
            (None, _) => Err(KubeconfigError::Unknown {
                path: self.path.clone(),
                kind,
                name: name.to_owned(),
                by: by.to_owned(),
            }),
        }
    }

    fn origin(&self, kind: &'static str, name: &str) -> Origin {
        Origin {
            document: self.path.display().to_string(),
            object: Some((kind, name.to_owned())),
        }
    }

    /// Reads a file that the kubeconfig names. A relative path starts at the kubeconfig's folder.
    fn read_beside(&self, file: &str) -> Result<Zeroizing<String>, KubeconfigError> {
        read_text(&self.path.parent().unwrap_or(Path::new("/")).join(file))
    }
}

fn filled(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

fn read_text(path: &Path) -> Result<Zeroizing<String>, KubeconfigError> {
    let failed = |source| KubeconfigError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut text = Zeroizing::new(String::new());
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_LEN + 1).read_to_string(&mut text))
        .map_err(failed)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_FILE_LEN {
        return Err(KubeconfigError::TooLarge {
            path: path.to_owned(),
            limit: MAX_FILE_LEN,
        });
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
