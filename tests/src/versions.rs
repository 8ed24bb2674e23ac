//! The programs and the manifests of this version, and of the previous version.

use std::path::{Path, PathBuf};

use kubelet_authenticator_test_support::binaries;
use kubelet_authenticator_test_support::control_plane::Kubectl;

use crate::{packaging, program};

/// A version of the project.
#[derive(Debug)]
pub struct Version {
    /// The directory of a previous version.
    built: Option<PathBuf>,
}

impl Version {
    /// This version.
    pub const CURRENT: Self = Self { built: None };

    /// The previous version, which `tests/previous/build` builds once.
    ///
    /// # Panics
    ///
    /// Panics if the build fails.
    #[track_caller]
    pub fn previous() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("previous/build");
        Self {
            built: Some(binaries::build(&script)),
        }
    }

    /// The path of a plugin, or of a controller.
    #[track_caller]
    pub fn program(&self, name: &str) -> PathBuf {
        let Some(built) = &self.built else {
            return program(name);
        };
        let programs = ["plugins", "controllers"].map(|folder| built.join(folder).join(name));
        let found = programs.into_iter().find(|program| program.is_file());
        found.unwrap_or_else(|| panic!("no {name} in {}", built.display()))
    }

    /// The directory of the version's manifests.
    pub fn manifests(&self) -> PathBuf {
        match &self.built {
            Some(built) => built.join("controllers/packaging"),
            None => packaging(),
        }
    }

    /// Applies the version's custom resource definitions as described in docs/upgrade.md, and the controller's
    /// permissions in a management cluster.
    #[track_caller]
    pub fn apply(&self, kubectl: &Kubectl) {
        let definitions = self.manifests().join("crds");
        let server_side = ["apply", "--server-side", "--force-conflicts", "-k"].map(Path::new);
        kubectl.ok(server_side.into_iter().chain([&*definitions]));
        let wait = ["wait", "--for=condition=Established", "--timeout=180s"];
        kubectl.ok(wait.into_iter().chain(["crd", "--all"]));
        let rights = self.manifests().join("rbac/management-cluster.yaml");
        kubectl.ok([Path::new("apply"), Path::new("-f"), &rights]);
    }
}
