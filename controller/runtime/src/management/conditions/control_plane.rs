//! The condition about a managed control plane, whose nodes cannot join.

use std::time::SystemTime;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use node_attestation_core::crd::conditions::{self, ConditionStatus, reason};
use node_attestation_core::crd::{KubeletAuthentication, KubeletAuthenticationStatus};

use super::report;
use crate::capi::Cluster;

/// The kinds of managed control planes, and the services that operate them.
const MANAGED: [(&str, &str); 8] = [
    ("AWSManagedControlPlane", "EKS"),
    ("ROSAControlPlane", "ROSA"),
    ("AROControlPlane", "ARO"),
    ("AzureManagedControlPlane", "AKS"),
    ("AzureASOManagedControlPlane", "AKS"),
    ("GCPManagedControlPlane", "GKE"),
    ("IBMPowerVSManagedControlPlane", "IBM Cloud"),
    ("OCIManagedControlPlane", "OKE"),
];

/// Adds the condition to `status` if the control plane is managed. Other control planes do not have this condition.
pub(in crate::management) fn set(
    status: &mut KubeletAuthenticationStatus,
    authentication: &KubeletAuthentication,
    cluster: Option<&Cluster>,
    now: SystemTime,
) {
    const SUPPORTED: &str = conditions::CONTROL_PLANE_SUPPORTED;
    let Some(cluster) = cluster else { return };
    let managed = MANAGED
        .iter()
        .find(|(kind, _)| cluster.control_plane.as_deref() == Some(*kind));
    let Some((kind, service)) = managed else {
        status.conditions.retain(|one| one.type_ != SUPPORTED);
        return;
    };
    let message = format!(
        "{kind}: {service} does not provide the CA key of the cluster, does not sign client certificates for kubelet \
         requests, and does not accept bootstrap tokens. Nodes cannot get client certificates from this controller, or \
         serving certificates, which require a node identity. Let the nodes join with the authentication of {service}, \
         and delete the KubeletAuthentication"
    );
    let report = report(
        SUPPORTED,
        ConditionStatus::False,
        reason::MANAGED_CONTROL_PLANE,
        message,
    );
    let generation = authentication.metadata.generation;
    let now = Time(Timestamp::try_from(now).unwrap_or_default());
    conditions::set(&mut status.conditions, &report, generation, &now);
}

#[cfg(test)]
mod tests {
    use node_attestation_core::crd::KubeletAuthenticationSpec;
    use node_attestation_core::testing::now;

    use super::*;
    use crate::capi::OwnAttestors;

    fn cluster(control_plane: Option<&str>) -> Cluster {
        Cluster {
            uid: "1".to_owned(),
            paused: false,
            deleting: false,
            watch_filter: None,
            endpoint: None,
            service_ranges: Vec::new(),
            infrastructure: None,
            control_plane: control_plane.map(ToOwned::to_owned),
            attestors: OwnAttestors::Unset,
        }
    }

    /// The status, the reason and the message of the condition, for this control plane and this status of the cluster.
    fn said(
        status: &mut KubeletAuthenticationStatus,
        control_plane: Option<&str>,
    ) -> Option<(String, String, String)> {
        let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
        let authentication = KubeletAuthentication::new("prod-1", spec);
        set(
            status,
            &authentication,
            Some(&cluster(control_plane)),
            now(),
        );
        let found = conditions::find(&status.conditions, "ControlPlaneSupported")?;
        Some((
            found.status.clone(),
            found.reason.clone(),
            found.message.clone(),
        ))
    }

    #[test]
    fn a_managed_control_plane_is_not_supported_and_others_have_no_condition() {
        let mut status = KubeletAuthenticationStatus::default();
        for (kind, service) in [
            ("AWSManagedControlPlane", "EKS"),
            ("ROSAControlPlane", "ROSA"),
            ("AROControlPlane", "ARO"),
            ("AzureManagedControlPlane", "AKS"),
            ("AzureASOManagedControlPlane", "AKS"),
            ("GCPManagedControlPlane", "GKE"),
            ("IBMPowerVSManagedControlPlane", "IBM Cloud"),
            ("OCIManagedControlPlane", "OKE"),
        ] {
            let (holds, reason, message) = said(&mut status, Some(kind)).unwrap();
            assert_eq!((&*holds, &*reason), ("False", "ManagedControlPlane"));
            let begin = format!("{kind}: {service} does not provide the CA key of the cluster, ");
            assert!(message.starts_with(&begin), "{message}");
        }
        for other in [
            None,
            Some("KubeadmControlPlane"),
            Some("GenericControlPlane"),
        ] {
            assert_eq!(said(&mut status, other), None, "{other:?}");
        }
    }

    #[test]
    fn the_control_plane_condition_stays_until_the_cluster_is_known() {
        let mut status = KubeletAuthenticationStatus::default();
        said(&mut status, Some("AWSManagedControlPlane")).unwrap();
        let before = status.clone();

        let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
        set(
            &mut status,
            &KubeletAuthentication::new("prod-1", spec),
            None,
            now(),
        );

        assert_eq!(status.conditions, before.conditions);
    }
}
