//! The controller's work for a Cluster other than first joins, with only a KubeletAuthentication: two API servers,
//! Cluster API's objects, and the released program.

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

/// Shared, because every test has its own Cluster, or its own machines in a Cluster.
static SITE: LazyLock<Arc<Site>> = LazyLock::new(Site::start);
