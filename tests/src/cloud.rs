//! A cloud whose instances can prove their identity: moto server simulates EC2, and the project's simulators simulate
//! STS and the metadata services.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::Header;
use kubelet_attestation::evidence::aws::{
    AwsEvidence, BINDING_HEADER, Proof, ProofFields, SIGNED_HEADERS, STS_ACCEPT, STS_BODY,
    STS_CONTENT_TYPE, STS_SERVICE,
};
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use kubelet_attestation::version::EvidenceVersion;
use kubelet_authenticator_test_support::imds::{self, Imds, Network};
use kubelet_authenticator_test_support::instance_identity::{Document, TestSigner};
use kubelet_authenticator_test_support::moto::{self, Moto};
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::sts::{Credentials, Principal, Signing, Sts, sign};
use sha2::{Digest as _, Sha256};

/// The account of all instances, except instances in other accounts.
pub const ACCOUNT: &str = "111122223333";

/// The region of all instances.
pub const REGION: &str = "eu-west-1";

/// The tag with which Cluster API Provider AWS marks an instance of [`CLUSTER`](crate::controller::CLUSTER).
pub const OWNED: (&str, &str) = (
    "sigs.k8s.io/cluster-api-provider-aws/cluster/prod-1",
    "owned",
);

/// The name of the user that owns the manager's access key.
pub const CONTROLLER: &str = "node-attestation-controller";

const HOUR: Duration = Duration::from_secs(3600);

/// The cloud, with a manager's configuration for it.
#[derive(Debug)]
pub struct Cloud {
    moto: Moto,
    sts: Sts,
    signer: TestSigner,
    scratch: Scratch,
}

/// A running instance, and its metadata service.
#[derive(Debug)]
pub struct Instance {
    /// The instance in EC2.
    pub ec2: moto::Instance,
    /// The metadata service of the instance.
    pub imds: Imds,
    /// The credentials of the instance identity role.
    pub credentials: Credentials,
    /// The identity document of the instance.
    pub document: String,
    /// The signed form of the identity document.
    pub rsa2048: String,
}

/// The data that EC2 creates when an instance is launched.
struct Launched {
    document: String,
    rsa2048: String,
    credentials: Credentials,
    metadata: imds::Instance,
}

impl Default for Cloud {
    fn default() -> Self {
        Self::start()
    }
}

impl Cloud {
    /// Starts a cloud without instances.
    pub fn start() -> Self {
        let cloud = Self {
            moto: Moto::start(),
            sts: Sts::start(),
            signer: TestSigner::new([1; 8]),
            scratch: Scratch::new("cloud"),
        };
        fs::write(cloud.signers(), cloud.signer.signers_file(&[REGION])).unwrap();
        fs::write(cloud.authorities(), cloud.sts.ca_pem()).unwrap();
        cloud.learn(ACCOUNT, CONTROLLER);
        cloud
    }

    /// EC2.
    pub fn moto(&self) -> &Moto {
        &self.moto
    }

    /// STS for every region.
    pub fn sts(&self) -> &Sts {
        &self.sts
    }

    /// Adds an account's access key for this user to STS.
    pub fn learn(&self, account: &str, user: &str) {
        let (id, secret) = moto::access_key(account);
        self.sts
            .learn(Principal::user(account, user), (&id, &secret));
    }

    /// Launches an instance with these tags in another account.
    #[track_caller]
    pub fn launch_in(&self, account: &str, tags: &[(&str, &str)]) -> Instance {
        self.boot(self.moto.ec2(account, REGION).run(tags))
    }

    /// Launches an instance with these tags.
    #[track_caller]
    pub fn launch(&self, tags: &[(&str, &str)]) -> Instance {
        self.boot(self.moto.ec2(ACCOUNT, REGION).run(tags))
    }

    /// Creates an instance with these tags that was launched an hour ago, so that EC2 has all of its data.
    #[track_caller]
    pub fn launched_an_hour_ago(&self, tags: &[(&str, &str)]) -> Instance {
        let mut ec2 = self.moto.ec2(ACCOUNT, REGION).run(tags);
        let launched = humantime::parse_rfc3339(&ec2.launched).unwrap() - HOUR;
        ec2.launched = humantime::format_rfc3339_millis(launched).to_string();
        self.moto
            .amend(&ec2.id, moto::Field::Launched, &ec2.launched);
        self.boot(ec2)
    }

    /// Launches an instance with these tags in a network of this kind. In EC2 and in the instance metadata, the
    /// instance has the names that AWS assigns in such a network.
    #[track_caller]
    pub fn launch_in_network(&self, network: Network, tags: &[(&str, &str)]) -> Instance {
        let mut ec2 = self.moto.ec2(ACCOUNT, REGION).run(tags);
        ec2.private_dns_name = network.private_dns_name(REGION, &ec2.id, &ec2.private_ip);
        let amend = |field, value: &str| self.moto.amend(&ec2.id, field, value);
        amend(moto::Field::PrivateDnsName, &ec2.private_dns_name);
        if network == Network::Ipv6Only {
            amend(moto::Field::PrivateIp, "");
            amend(moto::Field::Interfaces, &ipv6_interface(&ec2.launched));
        }
        let instance = self.boot(ec2);
        instance
            .imds
            .update(|metadata| metadata.join_network(network));
        instance
    }

    /// Launches several instances at the same time.
    #[track_caller]
    pub fn launch_many(&self, count: usize, tags: &[(&str, &str)]) -> Vec<Instance> {
        let launched = self.moto.ec2(ACCOUNT, REGION).run_many(count, tags);
        launched.into_iter().map(|ec2| self.boot(ec2)).collect()
    }

    /// Starts the metadata service for an instance, with new metadata, as after a launch.
    pub fn boot(&self, ec2: moto::Instance) -> Instance {
        let Launched {
            document,
            rsa2048,
            credentials,
            metadata,
        } = self.launched(&ec2);
        Instance {
            imds: Imds::start(metadata),
            ec2,
            credentials,
            document,
            rsa2048,
        }
    }

    /// Stops an instance and starts it again: afterwards, its metadata service has a new document and new credentials.
    pub fn restart(&self, instance: &mut Instance) {
        let ec2 = self.moto.ec2(&instance.ec2.account, &instance.ec2.region);
        ec2.stop(&instance.ec2.id);
        ec2.start(&instance.ec2.id);
        self.moto.restore(&instance.ec2.id);
        instance.ec2 = ec2.instance(&instance.ec2.id);
        let launched = self.launched(&instance.ec2);
        instance.imds.set(launched.metadata);
        instance.credentials = launched.credentials;
        instance.document = launched.document;
        instance.rsa2048 = launched.rsa2048;
    }

    /// Replaces the instance's document with a document in this version of the format.
    pub fn set_document_version(&self, instance: &mut Instance, version: &str) {
        let document = Document {
            version: version.to_owned(),
            ..document_of(&instance.ec2)
        };
        instance.rsa2048 = self.signer.sign(&document);
        instance.document = document.to_json();
        instance.imds.update(|metadata| {
            metadata.document = instance.document.clone().into_bytes();
            metadata.rsa2048.clone_from(&instance.rsa2048);
        });
    }

    fn launched(&self, ec2: &moto::Instance) -> Launched {
        let document = document_of(ec2);
        let rsa2048 = self.signer.sign(&document);
        let document = document.to_json();
        let credentials = self
            .sts
            .credentials(Principal::instance(&ec2.account, &ec2.id));
        let mut metadata = imds::Instance::new(&ec2.region, &ec2.zone, &ec2.id);
        metadata.local_hostname.clone_from(&ec2.private_dns_name);
        metadata.local_ipv4.clone_from(&ec2.private_ip);
        metadata.document = document.clone().into_bytes();
        metadata.rsa2048.clone_from(&rsa2048);
        metadata.identity_credentials = Some(imds::Credentials {
            access_key_id: credentials.access_key_id.clone(),
            secret_access_key: credentials.secret_access_key.clone(),
            session_token: credentials.session_token.clone(),
            expiration: credentials.expiration,
        });
        Launched {
            document,
            rsa2048,
            credentials,
            metadata,
        }
    }

    /// The manager's command-line options for this cloud. The manager uses its own credentials for Clusters without an
    /// identity, because most Clusters in the tests do not refer to an identity.
    pub fn manager_arguments(&self) -> Vec<OsString> {
        let fallback = OsString::from("--allow-controller-identity-fallback");
        self.arguments_without_fallback()
            .into_iter()
            .chain([fallback])
            .collect()
    }

    /// The manager's options for tests in which every Cluster needs an identity.
    pub fn arguments_without_fallback(&self) -> Vec<OsString> {
        let pairs = [
            ("--aws-extra-signers", self.signers().into()),
            ("--aws-endpoint-ca", self.authorities().into()),
            (
                "--aws-sts-endpoint",
                format!("{REGION}={}", self.sts.host()).into(),
            ),
            (
                "--aws-ec2-endpoint",
                format!("{REGION}={}", self.moto.url()).into(),
            ),
        ];
        let words = pairs.map(|(option, value): (_, OsString)| [OsString::from(option), value]);
        words.into_iter().flatten().collect()
    }

    /// The credentials of the manager.
    pub fn manager_environment(&self) -> [(&'static str, String); 3] {
        let (id, secret) = moto::access_key(ACCOUNT);
        [
            ("AWS_ACCESS_KEY_ID", id),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ]
    }

    /// Creates evidence with these parts by hand, for a request with this key.
    pub fn evidence(&self, parts: &Parts<'_>, spki: &[u8]) -> Vec<u8> {
        let binding = KeyBinding::new(
            &Provider::AWS,
            parts.audience,
            &ProviderId::parse(parts.provider_id).unwrap(),
            &NodeName::parse(parts.node_name).unwrap(),
            spki,
            &[&Sha256::digest(parts.document)],
        );
        let time = humantime::format_rfc3339_seconds(parts.signed_at).to_string();
        let time = time.replace(['-', ':'], "");
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let signing = Signing {
            method: "POST",
            path: "/",
            query: "",
            headers: &[
                header("accept", STS_ACCEPT),
                header("content-type", STS_CONTENT_TYPE),
                header("host", &self.sts.host()),
                header("x-amz-date", &time),
                header("x-amz-security-token", &parts.credentials.session_token),
                header(BINDING_HEADER, &binding.to_hex()),
            ],
            signed_headers: &SIGNED_HEADERS.split(';').collect::<Vec<_>>(),
            body: STS_BODY.as_bytes(),
            time: &time,
            region: REGION,
            service: STS_SERVICE,
        };
        let signature = sign(&signing, &parts.credentials.secret_access_key);
        let evidence = AwsEvidence {
            header: Header {
                version: EvidenceVersion::V1,
                audience: parts.audience.clone(),
            },
            rsa2048: parts.rsa2048.to_owned(),
            sts: Proof::new(ProofFields {
                region: REGION.to_owned(),
                access_key_id: parts.credentials.access_key_id.clone(),
                session_token: parts.credentials.session_token.clone(),
                amz_date: time.clone(),
                signature,
            })
            .unwrap(),
        };
        evidence.to_json()
    }

    /// The file with the certificates that sign the documents.
    pub fn signers(&self) -> PathBuf {
        self.scratch.join("signers.pem")
    }

    fn authorities(&self) -> PathBuf {
        self.scratch.join("authorities.pem")
    }
}

/// The identity document of an instance.
fn document_of(ec2: &moto::Instance) -> Document {
    let mut document = Document::new(&ec2.account, &ec2.region, &ec2.zone, &ec2.id);
    document.private_ip = Some(ec2.private_ip.clone());
    document.pending_time.clone_from(&ec2.launched);
    document
}

/// The first interface of an instance without IPv4, as reported by EC2.
fn ipv6_interface(attached: &str) -> String {
    format!(
        "<item><networkInterfaceId>eni-1</networkInterfaceId><status>in-use</status><attachment><deviceIndex>0\
         </deviceIndex><networkCardIndex>0</networkCardIndex><status>attached</status><attachTime>{attached}\
         </attachTime></attachment><ipv6AddressesSet><item><ipv6Address>2001:db8::1</ipv6Address></item>\
         </ipv6AddressesSet></item>"
    )
}

/// The parts of evidence.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'a> {
    /// The cluster in the evidence.
    pub audience: &'a Audience,
    /// The provider ID in the evidence.
    pub provider_id: &'a str,
    /// The node in the evidence.
    pub node_name: &'a str,
    /// An identity document.
    pub document: &'a str,
    /// The signed form of the identity document.
    pub rsa2048: &'a str,
    /// The credentials for the STS call.
    pub credentials: &'a Credentials,
    /// The time at which the call was signed.
    pub signed_at: SystemTime,
}

impl Instance {
    /// The provider ID of the instance.
    pub fn provider_id(&self) -> String {
        format!("aws:///{}/{}", self.ec2.zone, self.ec2.id)
    }

    /// The name of the instance's node, if the node uses its private DNS name.
    pub fn node_name(&self) -> &str {
        &self.ec2.private_dns_name
    }

    /// The parts of valid evidence for a request that claims the instance's own identity.
    pub fn parts<'a>(
        &'a self,
        audience: &'a Audience,
        provider_id: &'a str,
        signed_at: SystemTime,
    ) -> Parts<'a> {
        Parts {
            audience,
            provider_id,
            node_name: self.node_name(),
            document: &self.document,
            rsa2048: &self.rsa2048,
            credentials: &self.credentials,
            signed_at,
        }
    }

    /// The plugin's settings, each with its key.
    pub fn plugin_settings(&self, cloud: &Cloud) -> [(&'static str, String); 3] {
        let [metadata, sts] = self.services(cloud);
        let node_name = self.node_name().to_owned();
        [metadata, sts, ("nodeName", node_name)]
    }

    /// The cloud's endpoints, as settings for the plugin.
    pub fn services(&self, cloud: &Cloud) -> [(&'static str, String); 2] {
        [
            ("aws.metadataEndpoint", self.imds.url()),
            ("aws.stsEndpoint", cloud.sts.host()),
        ]
    }
}
