//! Checks that call the API server.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{env, fs};

use data_encoding::BASE64URL_NOPAD;
use kubelet_attestation::contract::CHALLENGE_ISSUED;
use kubelet_attestation::errors::error_chain;
use serde::Deserialize;

use super::local::by_need;
use super::{Doctor, STEP, either, fail, needs_root, warn};
use crate::attester::Renewal;
use crate::authenticator::{
    Cluster, bootstrap_failure, bootstrap_refused, refuse_other_cluster, unaccepted_certificate,
};
use crate::backoff::FailureRecord;
use crate::clock::{self, Deadline};
use crate::failure::{Code, Failure};
use crate::finding::{Finding, Report};
use crate::kube::kubeconfig::{ClusterEndpoint, Kubeconfig, Login};
use crate::kube::{ApiClient, ApiError, CsrObject, CsrState};
use crate::ownership;
use crate::pending::{OpenRequest, Pending};
use crate::reasons;
use crate::store::StoreFile;
use crate::store_contents::StoreContents;

/// The name of a request that does not exist. The attempt to read this request shows whether the API server accepts a
/// bootstrap credential.
const NO_REQUEST: &str = "kubelet-authenticator-doctor";

/// The expiry claim of a JSON Web Token (RFC 7519 section 4.1.4).
#[derive(Deserialize)]
struct Claims {
    exp: u64,
}

impl Doctor {
    /// Checks the API server and the clock, with one call.
    pub(super) fn reach(&self, report: Report<'_>) {
        let endpoint = match self.endpoint() {
            Ok(endpoint) => endpoint,
            Err(skip) => {
                report("clock", skip.clone());
                return report("api-server", skip);
            }
        };
        let server = endpoint.server();
        let reached = ApiClient::anonymous(&endpoint, &|name: &str| env::var_os(name))
            .and_then(|client| client.reach(Deadline::after(STEP)));
        let reachable = || Finding::pass(format!("{server} belongs to this cluster"));
        let (clock, server) = match reached.map_err(Failure::from) {
            Ok(()) => {
                let what = format!("less than 5 minutes from the clock of {server}");
                (Finding::pass(what), reachable())
            }
            Err(failure) if failure.code() == Code::ClockSkew => {
                (Finding::fail(&failure), reachable())
            }
            Err(failure) => {
                let skip = Finding::skip("the API server did not return a time");
                (skip, Finding::fail(&failure))
            }
        };
        report("clock", clock);
        report("api-server", server);
    }

    /// Returns the API server, from the first available source: the kubelet's kubeconfig, the store, or the bootstrap
    /// kubeconfig.
    fn endpoint(&self) -> Result<Arc<ClusterEndpoint>, Finding> {
        if let Some(Cluster::Checked(endpoint)) = &self.authenticator.cluster {
            return Ok(Arc::clone(endpoint));
        }
        let stored = self.stored().ok();
        let origin = stored.and_then(|(_, contents)| contents.origin);
        if let Some(Ok(endpoint)) = origin.map(|origin| origin.cluster()) {
            return Ok(endpoint.into());
        }
        let path = &self.settings().bootstrap_kubeconfig;
        let endpoint = Kubeconfig::read_endpoint(path).map_err(|error| {
            let why = error_chain(&error);
            Finding::skip(format!("the API server is unknown: {why}"))
        })?;
        Ok(endpoint.into())
    }

    fn client(&self, login: &Login) -> Result<ApiClient, Finding> {
        let environment = |name: &str| env::var_os(name);
        ApiClient::connect(&*self.endpoint()?, login, &environment).map_err(|error| unknown(&error))
    }

    /// Compares the cluster of the store with the cluster of the kubelet's kubeconfig.
    pub(super) fn cluster(&self) -> Finding {
        either(self.cluster_found())
    }

    fn cluster_found(&self) -> Result<Finding, Finding> {
        let (_, stored) = self.stored_or_skip()?;
        let (Some(origin), Some(Cluster::Checked(endpoint))) =
            (stored.origin, &self.authenticator.cluster)
        else {
            return Ok(Finding::skip(
                "no cluster in the state directory or in the kubelet's kubeconfig",
            ));
        };
        refuse_other_cluster(endpoint, &origin, self.settings())
            .map_err(|failure| Finding::fail(&failure))?;
        if origin.endpoint.ca_pem != endpoint.ca_pem() {
            let what = "the cluster's CA certificates have changed since the node enrolled";
            let cure = match self.authenticator.attester.renewal() {
                Renewal::Attested => "no action is needed: the next run renews the certificate",
                Renewal::Impossible => {
                    "no action is needed: when the kubelet runs the plugin again, the plugin \
                    stores the new CA certificates"
                }
            };
            return Ok(warn(what, cure));
        }
        Ok(Finding::pass(endpoint.server()))
    }

    pub(super) fn bootstrap_kubeconfig(&self) -> Finding {
        either(self.bootstrap_found())
    }

    fn bootstrap_found(&self) -> Result<Finding, Finding> {
        let path = &self.settings().bootstrap_kubeconfig;
        needs_root(path)?;
        let stored = self.stored();
        let stored = stored.map_or_else(|_| StoreContents::default(), |(_, contents)| contents);
        // A bootstrap kubeconfig is not needed while a valid certificate exists.
        let rate = by_need(&stored);
        let wrong = |failure: Failure| rate(failure.what().into(), failure.remedy().into());
        let bootstrap = Kubeconfig::read(path);
        let bootstrap = bootstrap.map_err(|error| wrong(bootstrap_failure(&error, path)))?;
        let end = match &bootstrap.login {
            Login::Token(token) => end(token.expose()),
            Login::ClientCertificate { .. } => None,
        };
        let ends = end.map_or_else(String::new, |end| {
            format!(", until {}", humantime::format_rfc3339_seconds(end))
        });
        let environment = |name: &str| env::var_os(name);
        let accepted = ApiClient::connect(&bootstrap.endpoint, &bootstrap.login, &environment)
            .and_then(|client| client.get(NO_REQUEST, Deadline::after(STEP)));
        match accepted {
            Ok(_) => {
                private(path)?;
                Ok(Finding::pass(format!(
                    "the API server accepts its credential{ends}"
                )))
            }
            Err(error) if error.is_about_the_requester() => {
                Err(wrong(bootstrap_refused(error, path)))
            }
            Err(error) => Err(unknown(&error)),
        }
    }

    /// Checks the open request, or otherwise the last request that was denied or failed.
    pub(super) fn request(&self) -> Finding {
        either(self.request_found())
    }

    fn request_found(&self) -> Result<Finding, Finding> {
        let (store, stored) = self.stored_or_skip()?;
        let Some(store) = store else {
            return Ok(Finding::pass("no open request"));
        };
        let text = store.read(StoreFile::Pending);
        let text = text.map_err(|failure| Finding::fail(&failure))?;
        let pending = text.map(|text| Pending::parse(&text)).transpose();
        let pending = pending.map_err(|why| {
            let cure = "no action is needed: the next run sets it aside";
            warn(format!("pending.json: {why}"), cure)
        })?;
        if let Some(open) = pending.and_then(|pending| pending.request) {
            return self.open_request(&open, &stored);
        }
        let record = FailureRecord::read(&store).filter(|record| {
            let code = Code::from_number(record.code);
            matches!(code, Some(Code::Denied | Code::Failed | Code::Version))
        });
        match record {
            Some(record) => Err(by_need(&stored)(record.message, record.remedy)),
            None => Ok(Finding::pass("no open request")),
        }
    }

    fn open_request(&self, open: &OpenRequest, stored: &StoreContents) -> Result<Finding, Finding> {
        let renewed = self.authenticator.attester.renewal() == Renewal::Attested;
        let valid = stored.valid(clock::now()).filter(|_| renewed);
        let login = match valid {
            Some(credential) => credential.login(),
            None => match Kubeconfig::read(&self.settings().bootstrap_kubeconfig) {
                Ok(bootstrap) => bootstrap.login,
                Err(error) => return Ok(Finding::skip(error_chain(&error))),
            },
        };
        let read = self.client(&login)?.get(&open.name, Deadline::after(STEP));
        let read = read.map_err(|error| unknown(&error))?;
        Ok(judge(open, read, by_need(stored)))
    }

    /// Checks whether the API server accepts the stored certificate.
    pub(super) fn certificate_accepted(&self) -> Finding {
        either(self.acceptance_found())
    }

    fn acceptance_found(&self) -> Result<Finding, Finding> {
        let (_, stored) = self.stored_or_skip()?;
        let (Some(credential), Some(origin)) = (stored.valid(clock::now()), &stored.origin) else {
            return Ok(Finding::skip("no valid certificate"));
        };
        let deadline = Deadline::after(STEP);
        let tried = self
            .authenticator
            .try_certificate(origin, credential, deadline);
        match tried {
            None => Ok(Finding::skip("the stored cluster is invalid")),
            Some(Ok(())) => Ok(Finding::pass("the API server accepts the node's writes")),
            Some(Err(error)) if error.is_about_the_requester() => {
                let cure = unaccepted_certificate(&error, &self.settings().bootstrap_kubeconfig);
                Err(fail(error_chain(&error), cure))
            }
            Some(Err(error)) => Err(unknown(&error)),
        }
    }
}

/// Returns the finding for an open request, from its object in the API server.
fn judge(
    open: &OpenRequest,
    read: Option<CsrObject>,
    rate: fn(String, String) -> Finding,
) -> Finding {
    let name = &open.name;
    let Some(read) = read else {
        let what = format!("request {name} does not exist on the API server");
        return rate(
            what,
            "no action is needed: the next run creates another request".to_owned(),
        );
    };
    match read.state {
        CsrState::Pending if read.is_approved => rate(
            format!("request {name} is approved, but no certificate is issued"),
            format!(
                "check the controller that serves the signer {}: node-attestation-controller or \
                 kube-controller-manager",
                read.signer_name
            ),
        ),
        CsrState::Pending => {
            let made = UNIX_EPOCH + Duration::from_secs(open.created.min(u32::MAX.into()));
            rate(
                format!(
                    "request {name} has been pending since {}",
                    humantime::format_rfc3339_seconds(made)
                ),
                "check that node-attestation-controller runs, and that its inventory contains this machine"
                    .to_owned(),
            )
        }
        CsrState::Denied { reason, message } => {
            let what = format!("request {name} was denied ({reason}): {message}");
            fail(what, reasons::remedy(&reason))
        }
        CsrState::Failed { reason, .. } if reason == CHALLENGE_ISSUED => Finding::pass(format!(
            "request {name} has a challenge, which the next run answers"
        )),
        CsrState::Failed {
            reason, message, ..
        } => rate(
            format!("request {name} failed ({reason}): {message}"),
            reasons::remedy(&reason),
        ),
        CsrState::Issued { .. } => Finding::pass(format!(
            "request {name} has a certificate, which the next run fetches"
        )),
    }
}

/// Returns the finding for a check for which the API server did not return the required information.
fn unknown(error: &ApiError) -> Finding {
    Finding::skip(format!("unknown: {}", error_chain(error)))
}

/// The expiry of a bootstrap token, if it is a JSON Web Token.
fn end(token: &str) -> Option<SystemTime> {
    let claims = token.split('.').nth(1)?;
    let claims = BASE64URL_NOPAD.decode(claims.as_bytes()).ok()?;
    let claims: Claims = serde_json::from_slice(&claims).ok()?;
    Some(UNIX_EPOCH + Duration::from_secs(claims.exp.min(u32::MAX.into())))
}

/// Warns about a kubeconfig whose credential another user could read or change.
fn private(path: &Path) -> Result<(), Finding> {
    let place = path.display();
    let mode = fs::metadata(path).map_or(0, |metadata| metadata.mode() & 0o7777);
    if mode & 0o044 != 0 {
        let what = format!("{place} has mode {mode:04o}, so other users can read its credential");
        return Err(warn(what, format!("run: chmod 600 {place}")));
    }
    match ownership::of_path(path) {
        Some(untrusted) => Err(warn(untrusted.what, untrusted.remedy)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expiry_of_a_jwt_token_is_read() {
        let claims = BASE64URL_NOPAD.encode(br#"{"sub":"a","exp":60}"#);
        let expected = Some(UNIX_EPOCH + Duration::from_mins(1));

        assert_eq!(end(&format!("e30.{claims}.c2ln")), expected);
        assert_eq!(end("abcdef.0123456789abcdef"), None);
        assert_eq!(end(""), None);
    }
}
