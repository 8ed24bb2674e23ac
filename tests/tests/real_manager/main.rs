//! Tests of the controller's tasks for a Cluster, except first joins. The only input is a KubeletAuthentication. The
//! tests use two API servers, Cluster API objects and the released program.

mod adoption;
mod ca_key;
mod closing;
mod control_plane;
mod enablement;
mod names;
mod revocation;
mod serving;
mod stock;
mod tokens;
mod two_attestors;

use std::sync::{Arc, LazyLock};

use kubelet_authenticator_tests::scene::Site;

/// The site that all tests share, because every test has its own Cluster, or its own machines in a Cluster. The
/// controller has only the permissions in its manifest.
static SITE: LazyLock<Arc<Site>> = LazyLock::new(Site::least_privileged);
