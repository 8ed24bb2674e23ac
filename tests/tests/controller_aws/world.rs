//! A cluster with a real controller, a node, and the real plugin.

use std::time::{Duration, SystemTime};

use base64::prelude::*;
use kubelet_authenticator_test_support::imds::Credentials;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::sts::Principal;
use kubelet_authenticator_tests::cloud::{ACCOUNT, Cloud, Instance, OWNED};
use kubelet_authenticator_tests::controller::{Bed, Controller, Setup, token_of_instance};
use kubelet_authenticator_tests::node::{Node, PATIENCE, Run};
use serde_json::Value;

const HOUR: Duration = Duration::from_secs(3600);

/// A cluster with its cloud, and a node that joins.
pub struct World {
    pub cloud: Cloud,
    pub bed: Bed,
    pub controller: Controller,
    pub instance: Instance,
    pub node: Node,
}

impl World {
    pub fn start() -> Self {
        Self::with(|_, _, setup| setup)
    }

    /// Starts a cloud with one instance that was launched an hour ago, and a controller whose setup `told` has changed.
    pub fn with(told: impl FnOnce(&Cloud, &Instance, Setup) -> Setup) -> Self {
        let cloud = Cloud::start();
        let instance = cloud.launched_an_hour_ago(&[OWNED]);
        Self::of(cloud, instance, told)
    }

    /// Starts a controller for this instance in this cloud. `told` changes the controller's setup.
    pub fn of(
        cloud: Cloud,
        instance: Instance,
        told: impl FnOnce(&Cloud, &Instance, Setup) -> Setup,
    ) -> Self {
        let instances = vec![instance];
        let mut bed = Bed::instances(&cloud, &instances);
        bed.setup = told(&cloud, &instances[0], bed.setup);
        let mut controller = bed.setup.start();
        controller.wait_until_it_watches();
        let instance = instances.into_iter().next().unwrap();
        let token = token_of_instance(0);
        let secret = "0123456789abcdef";
        bed.server.add_token(&token, secret);
        let mut node = Node::new("kubelet-authenticator-aws", &bed.server);
        let bootstrap = bed
            .server
            .write_bootstrap_kubeconfig(node.scratch().path(), &format!("{token}.{secret}"));
        node.set("bootstrapKubeconfig", bootstrap);
        node.unset("providerID");
        for (name, value) in instance.plugin_settings(&cloud) {
            node.set(name, value);
        }
        Self {
            cloud,
            bed,
            controller,
            instance,
            node,
        }
    }

    pub fn run(&self) -> Run {
        self.node.start(&["credential", "--verbose"]).finish()
    }

    #[track_caller]
    pub fn joins_in_the_end(&self) {
        let joined = poll(PATIENCE, || (self.run().code == Some(0)).then_some(()));
        assert!(joined.is_some(), "{}", self.controller.process.log());
    }

    /// Creates credentials for this principal, in the format of the metadata service.
    pub fn give(&self, principal: Principal) -> Credentials {
        let end = self.cloud.sts().now() + HOUR;
        self.until(principal, end)
    }

    /// Issues credentials to the instance that STS treats as expired, although the metadata service reports a later
    /// expiry time.
    pub fn expire_credentials(&self) {
        let principal = Principal::instance(ACCOUNT, &self.instance.ec2.id);
        let mut given = self.until(principal, self.cloud.sts().now());
        given.expiration += HOUR;
        self.have(given);
    }

    /// Issues new credentials for the instance identity role to the instance.
    pub fn rotate_credentials(&self) {
        self.have(self.give(Principal::instance(ACCOUNT, &self.instance.ec2.id)));
    }

    fn until(&self, principal: Principal, expiration: SystemTime) -> Credentials {
        let given = self.cloud.sts().credentials_until(principal, expiration);
        Credentials {
            access_key_id: given.access_key_id.clone(),
            secret_access_key: given.secret_access_key.clone(),
            session_token: given.session_token.clone(),
            expiration,
        }
    }

    fn have(&self, credentials: Credentials) {
        let metadata = &self.instance.imds;
        metadata.update(|metadata| metadata.identity_credentials = Some(credentials));
    }

    /// The secrets: the instance's credentials, and every signature that was made with them.
    pub fn secrets(&self) -> Vec<String> {
        let mut secrets = Vec::new();
        self.instance.imds.update(|metadata| {
            let credentials = metadata.identity_credentials.as_ref().unwrap();
            secrets.push(credentials.access_key_id.clone());
            secrets.push(credentials.secret_access_key.clone());
            secrets.push(credentials.session_token.clone());
        });
        for body in self.bed.server.created_bodies() {
            let body: Value = serde_json::from_slice(&body).unwrap();
            if let Some(request) = body["spec"]["request"].as_str() {
                let request = BASE64_STANDARD.decode(request);
                let blocks = pem::parse_many(request.unwrap()).unwrap();
                let evidence: Value = serde_json::from_slice(blocks[2].contents()).unwrap();
                secrets.push(evidence["sts"]["signature"].as_str().unwrap().to_owned());
            }
        }
        secrets
    }

    /// Asserts that no output and no object in the cluster contains a secret.
    #[track_caller]
    pub fn tells_no_secret(&self, runs: &[Run]) {
        let mut told = self.controller.process.log().text();
        for run in runs {
            told += &run.stdout;
            told += &run.stderr;
        }
        told += &self.node.command(&["status"]).stdout;
        told += &self.node.json("failure.json").to_string();
        for event in self.bed.server.events() {
            told += &event.to_string();
        }
        for csr in self.bed.server.csrs() {
            told += &csr["metadata"].to_string();
            told += &csr["status"].to_string();
        }
        let secrets = self.secrets();
        assert!(secrets.len() > 3, "there was no request");
        for secret in secrets {
            assert!(!told.contains(&secret), "{secret} is told in {told}");
        }
    }
}
