//! Restores a lost kubeconfig of a kubelet.

use std::path::{Path, PathBuf};

use super::current::Current;
use super::kubeconfig::exec_kubeconfig;
use super::{Setup, lock};
use crate::authenticator::Authenticator;
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::{ClusterEndpoint, Kubeconfig, KubeconfigError};
use crate::kubelet::CONFIGURATION;
use crate::process;
use crate::store::replace_file;
use crate::store_contents::StoreContents;

impl Setup {
    /// Restores the kubeconfig of a kubelet that used the plugin. `error` is the reason why no bootstrap kubeconfig can
    /// be used instead.
    pub(super) fn restore(
        &self,
        authenticator: &Authenticator<'_>,
        current: Current,
        error: KubeconfigError,
    ) -> Result<String, Failure> {
        let is_absent = error.is_absence_of(&self.from) && self.from != self.kubelet_kubeconfig;
        let from = self.from.display();
        let (_, stored) = authenticator.stored()?;
        let is_reset = matches!(current, Current::Missing) && self.is_reset(authenticator);
        let known = if is_reset {
            Ok(None)
        } else {
            self.known_cluster(authenticator, &stored)
        };
        let endpoint = match known {
            Ok(Some(endpoint)) => endpoint,
            Ok(None) if is_absent => return self.leave(&format!("{from} does not exist")),
            // The node was set up, so its environment file is kept.
            Err(failure) if is_absent => return Err(failure),
            Ok(None) | Err(_) => return Err(error.into()),
        };
        let kubeconfig = self.kubelet_kubeconfig.display();
        match current {
            Current::Invalid(invalid) => {
                let cure = format!(
                    "correct {kubeconfig}; or remove it and restart the kubelet, which writes it again"
                );
                return Err(Failure::of(Code::Configuration, &invalid, cure));
            }
            Current::Missing if !configuration(authenticator).exists() => {
                let what = format!(
                    "{kubeconfig} and {CONFIGURATION} do not exist, as after `kubeadm reset`"
                );
                let cure = format!(
                    "join the node again, or run `{} > {kubeconfig}`",
                    process::render("kubeconfig", &self.program)
                );
                return Err(Failure::new(Code::Configuration, what, cure));
            }
            Current::Missing | Current::Empty => {}
            Current::Unreadable(_)
            | Current::Ours(_)
            | Current::OfAnotherProvider(_)
            | Current::Plugin(_)
            | Current::Own => return Err(error.into()),
        }
        if !is_absent {
            let what = format!("cannot use {from}");
            authenticator.log.warn_of(&what, &error.into());
        }
        let held = lock(authenticator)?;
        let text = exec_kubeconfig(&endpoint, &self.program);
        replace_file(&self.kubelet_kubeconfig, text.as_bytes(), &held)?;
        self.write_environment(&held)?;
        Ok(format!(
            "restored the missing {kubeconfig}: the kubelet runs {}\n",
            self.program.display()
        ))
    }

    /// Whether `kubeadm reset` has removed the kubelet's files.
    fn is_reset(&self, authenticator: &Authenticator<'_>) -> bool {
        !configuration(authenticator).exists() && !self.kubeadm_flags.exists()
    }

    /// The cluster of a kubelet that used the plugin, from the store or otherwise from the plugin's bootstrap
    /// kubeconfig; `None` for a kubelet that did not use the plugin.
    fn known_cluster(
        &self,
        authenticator: &Authenticator<'_>,
        stored: &StoreContents,
    ) -> Result<Option<ClusterEndpoint>, Failure> {
        if stored.credential.is_none() && !self.environment_file.exists() {
            return Ok(None);
        }
        let known = stored.origin.as_ref().and_then(|it| it.cluster().ok());
        if known.is_some() {
            return Ok(known);
        }
        let copy: &Path = &authenticator.settings.bootstrap_kubeconfig;
        let read = Kubeconfig::read_endpoint(copy).map_err(|error| {
            let what = format!("cannot restore {}", self.kubelet_kubeconfig.display());
            let from = self.from.display();
            let cure = format!(
                "write a kubeconfig with a bootstrap token to {from}, and restart the kubelet"
            );
            Failure::of(Code::Configuration, &error, cure).within(&what)
        })?;
        Ok(Some(read))
    }
}

fn configuration(authenticator: &Authenticator<'_>) -> PathBuf {
    authenticator.machine.path(CONFIGURATION)
}
