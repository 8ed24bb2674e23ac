//! Requests that contradict themselves, the policy, or the known facts about the machine.

use std::net::IpAddr;
use std::time::Duration;

use kubelet_attestation::csr::envelope::MAX_REQUEST_LEN;
use kubelet_attestation::csr::subject::InvalidSubject;
use kubelet_attestation::names::{Audience, NodeName, Provider, ProviderId};
use x509_cert::der::asn1::ObjectIdentifier;

use super::{EvidenceDenial, EvidenceReason};
use crate::identifiers::{CertificateUid, KeyDigest, NodeNames, ServingName, TokenId};

crate::reasons! {
    /// The reasons to deny a request: one reason per check, in the order of the checks.
    #[derive(Clone, PartialEq, Eq)]
    pub Denial {
        /// `spec.request` is larger than the controller accepts.
        #[error("spec.request is {0} bytes long; the maximum is {MAX_REQUEST_LEN}")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        RequestTooLarge(usize) => "the request is too large",
        /// The requester's attributes in `spec` are larger than the attributes that the API server sets for a node or a
        /// bootstrap token.
        #[error("spec.{0} is too large for a node or a bootstrap token")]
        #[cure("Identify the client from `spec.username` of the request. No node or bootstrap token has such \
                 attributes.")]
        RequesterTooLarge(&'static str) => "the requester's attributes are too large",

        /// `spec.request` has no PEM block.
        #[error("spec.request has no PEM block")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        NoPemBlock => "the request has no PEM block",
        /// `spec.request` does not begin with a `CERTIFICATE REQUEST` block.
        #[error("spec.request does not begin with a CERTIFICATE REQUEST block")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        NotARequestFirst => "the request does not begin with a CERTIFICATE REQUEST block",
        /// There are two `CERTIFICATE REQUEST` blocks, which two parsers could read as two different requests.
        #[error("spec.request has two CERTIFICATE REQUEST blocks")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        SecondRequest => "the request has two CERTIFICATE REQUEST blocks",
        /// The provider block or the evidence block occurs twice.
        #[error("spec.request has a duplicate block")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        DuplicateBlock => "the request contains a duplicate block",
        /// The request has a block of an unknown type.
        #[error("spec.request has an unknown block")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        UnknownBlock => "the request has an unknown block",
        /// The request has an evidence block without a provider block before it.
        #[error("spec.request has evidence without a provider before it")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        EvidenceWithoutProvider => "the request has evidence without a provider",
        /// `spec.request` has text between or after the blocks.
        #[error("spec.request has text outside its blocks")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        TextOutsideBlocks => "the request has text outside its blocks",
        /// The headers, line lengths, line endings or base64 of a block are not in the required encoding.
        #[error("spec.request is not in the required PEM encoding")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        NotStrictPem => "the request is not in the required PEM encoding",
        /// The provider block does not contain the name of an attestation provider.
        #[error("the provider block does not contain a valid provider name")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        ProviderMalformed => "the provider block does not contain a valid provider name",
        /// The evidence is larger than the controller accepts.
        #[error("the evidence is too large")]
        #[cure("Identify the client from `spec.username` of the request. The plugin's evidence is always smaller.")]
        EvidenceTooLarge => "the evidence is too large",
        /// The certification request is not in DER, is not in canonical form, or has trailing bytes.
        #[error("the certification request is not valid DER: {0}")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        NotStrictDer(String) => "the certification request is not valid DER",
        /// The certification request has an attribute other than the requested extensions.
        #[error("the certification request has an unsupported attribute")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        UnknownAttribute => "the certification request has an unsupported attribute",
        /// The certification request has two extension lists.
        #[error("the certification request has two extension lists")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        DuplicateAttribute => "the certification request has two extension lists",
        /// The certification request has the same extension twice.
        #[error("the certification request has a duplicate extension")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        DuplicateExtension => "the certification request has a duplicate extension",
        /// The key is not an ECDSA key on the named curve P-256.
        #[error("the key algorithm is {0}; only ECDSA on the named curve P-256 is accepted")]
        #[cure("Request the certificate with the plugin, which creates such a key.")]
        KeyNotAccepted(ObjectIdentifier) => "the key is not an ECDSA key on the named curve P-256",
        /// The key is not a point on its curve, or is not in uncompressed form.
        #[error("the key is not an uncompressed point on P-256")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        KeyNotOnCurve => "the key is not an uncompressed point on P-256",
        /// The request is not signed with ECDSA and SHA-256.
        #[error("the certification request is not signed with ECDSA and SHA-256")]
        #[cure("Request the certificate with the plugin, which signs with ECDSA and SHA-256.")]
        SignatureAlgorithmNotAccepted => "the certification request is not signed with ECDSA and SHA-256",
        /// The request is not signed with its own key.
        #[error("the signature of the certification request does not match its own key")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        SelfSignatureInvalid => "the certification request is not signed with its own key",

        /// The organization is not exactly `system:nodes`.
        #[error("{}", InvalidSubject::Organization)]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        SubjectOrganization => "the subject's organization is not exactly system:nodes",
        /// The common name does not begin with `system:node:`.
        #[error("{}", InvalidSubject::CommonNamePrefix)]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        SubjectCommonName => "the subject's common name does not begin with system:node:",
        /// The common name does not end with a valid node name.
        #[error("{}", InvalidSubject::NodeName)]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        SubjectNodeName => "the subject's common name does not end in a node name",
        /// The subject has a different order or string type, or several values in one part.
        #[error("{}", InvalidSubject::NotCanonical)]
        #[cure("Identify the client from `spec.username` of the request. Neither the plugin nor a kubelet sends such a \
                 request.")]
        SubjectNotCanonical => "the subject is not in the required form (O=system:nodes, CN=system:node:<name>)",
        /// The subject has an attribute other than organization and common name.
        #[error("{}", InvalidSubject::ExtraAttribute)]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        SubjectExtraAttribute => "the subject has an attribute other than organization and common name",
        /// `spec.usages` is not exactly digital signature and client auth.
        #[error("spec.usages is not exactly digital signature and client auth")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        UsagesNotExact => "the usages are not exactly digital signature and client auth",
        /// The request contains a subject alternative name, which a client certificate cannot have.
        #[error("the request contains a subject alternative name of kind {0}")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        SubjectAltNameRequested(&'static str) => "subject alternative names are not allowed",
        /// The request contains basic constraints, with or without the CA flag.
        #[error("the request contains basic constraints with CA:{}", if *ca { "TRUE" } else { "FALSE" })]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        BasicConstraintsRequested {
            /// Whether to be a CA.
            ca: bool,
        } => "basic constraints are not accepted",
        /// The certification request contains key usages, which could differ from `spec.usages`.
        #[error("the certification request contains key usages")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        UsageExtensionRequested => "usages are accepted only in spec.usages",
        /// The request contains a critical extension.
        #[error("the request contains the critical extension {0}")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        CriticalExtension(ObjectIdentifier) => "the request contains a critical extension",
        /// The request contains an extension that the controller does not support.
        #[error("the request contains the unknown extension {0}")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        UnknownExtension(ObjectIdentifier) => "the request contains an unknown extension",
        /// The provider ID extension is missing.
        #[error("the provider ID extension is missing")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        ProviderIdMissing => "the provider ID extension is missing",
        /// The provider ID extension is not a single `UTF8String` with a provider ID.
        #[error("the provider ID extension is not a single UTF8String with a provider ID")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        ProviderIdMalformed => "the provider ID extension is malformed",

        /// The attestation provider of the evidence does not match the requested signer.
        #[error(
            "the signer name is for {signer}, but the provider block names {}",
            claimed.as_ref().map_or("no provider", Provider::as_str)
        )]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        ProviderMismatch {
            /// The signer's provider.
            signer: Provider,
            /// The provider block's.
            claimed: Option<Provider>,
        } => "the evidence provider does not match the signer name",
        /// The attestation provider requires evidence, but the request has none.
        #[error("the request has no evidence")]
        #[cure("Identify the client from `spec.username` of the request. The plugin always adds the evidence.")]
        EvidenceMissing => "the request has no evidence",
        /// The attestation provider does not use evidence, but the request contains evidence.
        #[error("the request contains evidence, but its provider does not use evidence")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        EvidenceUnexpected => "this provider does not use evidence",
        /// The evidence does not have the format that its version requires.
        #[error("the evidence is malformed: {0}")]
        #[cure("Run `csr --dry-run` and `inspect evidence` on the node. Compare the versions of the plugin and the \
                 controller.")]
        EvidenceMalformed(String) => "the evidence is malformed",

        /// The requested signer issues a different kind of certificate.
        #[error("the requested signer issues a different kind of certificate")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sends such a request.")]
        SignerPurpose => "the requested signer issues a different kind of certificate",
        /// The request to the built-in client signer has no evidence. If it were approved, any holder of a bootstrap
        /// token could become any node.
        #[error("the request to kubernetes.io/kube-apiserver-client-kubelet has no evidence: {0}")]
        #[cure("Set up the plugin on the node. Its kubelet does not use the plugin.")]
        UnattestedBuiltInRequest(&'static str) => "kubelet client certificates require evidence in this cluster; configure the kubelet to use kubelet-authenticator",
        /// The request has evidence and is for the built-in client signer. Only this controller's signers verify
        /// evidence. The log and the Event name the correct signer.
        #[error("the request names kubernetes.io/kube-apiserver-client-kubelet instead of {0}")]
        #[cure("Request the certificate from the signer that the log and the Event name, as the plugin does.")]
        BuiltInSignerNotUsed(String) => "the built-in signer is not used in this cluster; request the signer of the attestation provider",
        /// A request to the serving signer of kube-controller-manager has a longer validity than the
        /// `KubeletAuthentication` permits. That signer does not shorten the validity.
        #[error("spec.expirationSeconds is {}; the maximum is {}", asked.as_secs(), granted.as_secs())]
        #[cure("Lower `spec.expirationSeconds` of the request, or raise `certificate.expirationSeconds` in the \
                 KubeletAuthentication.")]
        ExpirationTooLong {
            /// `spec.expirationSeconds`.
            asked: Duration,
            /// The most.
            granted: Duration,
        } => "expirationSeconds exceeds the limit of this cluster",

        /// `spec.usages` of a serving certificate is not exactly digital signature and server auth.
        #[error("spec.usages is not exactly digital signature and server auth")]
        #[cure("Identify the client from `spec.username` of the request. A kubelet with an ECDSA key never sends such \
                 a request.")]
        ServingUsagesNotExact => "the usages are not exactly digital signature and server auth",
        /// A request for a serving certificate has attestation blocks. The node's client certificate already identifies
        /// the node.
        #[error("the serving certificate request contains attestation blocks")]
        #[cure("Identify the client from `spec.username` of the request. Neither the plugin nor a kubelet sends such a \
                 request.")]
        AttestationUnexpected => "a serving certificate request must not contain attestation blocks",
        /// A request for a serving certificate has no subject alternative names.
        #[error("the serving certificate request contains neither a name nor an address")]
        #[cure("Identify the client from `spec.username` of the request. A kubelet never sends such a request.")]
        ServingNamesMissing => "a serving certificate request must contain a name or an address",
        /// A subject alternative name is neither a DNS name nor an IP address.
        #[error("the serving certificate request contains a name of kind {0}")]
        #[cure("Identify the client from `spec.username` of the request. A kubelet never sends such a request.")]
        ServingNameKind(&'static str) => "a serving certificate can contain only DNS names and IP addresses",
        /// A subject alternative name is not in the required form. A DNS name must be in lower case, without a wildcard
        /// or a trailing dot. An address must have 4 or 16 bytes, and must not be an IPv4-mapped IPv6 address.
        #[error("the subject alternative name {0:?} is not in the required form")]
        #[cure("Correct the name or address of the Node. The log shows the invalid value.")]
        ServingNameMalformed(String) => "a name or address is not in the required form",
        /// A subject alternative name occurs twice.
        #[error("the request contains {0} twice")]
        #[cure("Identify the client from `spec.username` of the request. A kubelet never sends such a request.")]
        ServingNameRepeated(ServingName) => "the request contains a duplicate name or address",
        /// The request has more than 1,024 names and addresses.
        #[error("the request contains {0} names and addresses")]
        #[cure("Set the kubelet's `--node-ip` to reduce the number of Node addresses.")]
        TooManyServingNames(usize) => "the request contains too many names and addresses",
        /// The name or address cannot belong to a single machine: it is the control-plane endpoint, `kubernetes`, a
        /// Service, the local host, or not a single host.
        #[error("{0} is reserved: it does not belong to a single machine")]
        #[cure("Remove the name or address from the Node, for example with the kubelet's `--node-ip`.")]
        ServingNameReserved(ServingName) => "a name or address is reserved",
        /// The address is outside the ranges in `servingAddressRanges`.
        #[error("{0} is outside servingAddressRanges")]
        #[cure("Add the address that the Event names to `servingAddressRanges`, or change the kubelet's `--node-ip`.")]
        ServingAddressOutOfRange(IpAddr) => "an address is outside the allowed ranges for serving certificates",
        /// The machine obtained its certificate without evidence, so its addresses cannot be verified.
        #[error("node {0} joined without evidence")]
        #[cure("Use an attestation provider with evidence. A node that uses `insecure` cannot get a serving \
            certificate.")]
        UnattestedServing(NodeName) => "a node without evidence cannot get a serving certificate",
        /// The name or address belongs to another machine.
        #[error("{0} also belongs to machine {1}")]
        #[cure("Correct the addresses that the infrastructure reports for the two machines.")]
        ServingNameOfAnotherMachine(ServingName, String) => "a name or address belongs to another machine",
        /// The infrastructure does not report the name or address for the machine.
        #[error("the infrastructure does not report {0} for machine {1}")]
        #[cure("Set the kubelet's `--node-ip`, correct the addresses in the infrastructure, or use \
                 `guestReportedAddresses: Allow` with `servingAddressRanges`.")]
        ServingNameNotReported(ServingName, String) => "the infrastructure does not report a name or address for this machine",

        /// The requester is neither a bootstrap token nor a node.
        #[error("the requester {0:?} is neither a bootstrap token nor a node")]
        #[cure("Use the bootstrap token of the Machine. The log names the requester.")]
        RequesterNotAccepted(String) => "the requester is neither a bootstrap token nor a node",
        /// The requester's groups do not match the groups of a bootstrap token or of a node.
        #[error("the requester's groups do not match a bootstrap token or a node: {0:?}")]
        #[cure("Correct `auth-extra-groups` of the bootstrap token: each group must begin with \
                 `system:bootstrappers:`. The log names the groups.")]
        RequesterGroups(Vec<String>) => "the requester's groups are not accepted",
        /// A node requests a certificate for a different node.
        #[error("node {requester} requests a certificate for node {asked}")]
        #[cure("Identify the client from `spec.username` of the request. A node can request only its own certificate.")]
        RequesterIsAnotherNode {
            /// The requester.
            requester: NodeName,
            /// The requested node.
            asked: NodeName,
        } => "a node can request only its own certificate",
        /// The requesting node's certificate does not contain the UID of a node identity. kube-apiserver forwards this
        /// UID in Kubernetes 1.33 and later.
        #[error("the requester's certificate does not contain a UID from this controller")]
        #[cure("Set `adoption: Allow` for a node that joined before attestation was enabled, or use its bootstrap \
                 token. Check that the workload cluster runs Kubernetes 1.33 or later.")]
        RequesterUidMissing => "the requester's certificate was not issued by this controller, and the node cannot be adopted",
        /// A certificate that was obtained without evidence cannot be renewed.
        #[error("the certificate was obtained without evidence")]
        #[cure("Use the bootstrap token, as the plugin does when the certificate has expired. For renewals, use a \
                 provider with evidence.")]
        UnattestedRenewal => "a certificate that was obtained without evidence cannot be renewed",

        /// The bootstrap token and the request belong to different machines.
        #[error("bootstrap token {0} does not belong to machine {1}")]
        #[cure("Correct the machine's bootstrap data. If the data is correct, treat the request as an attack.")]
        TokenOfAnotherMachine(TokenId, String) => "the bootstrap token belongs to another machine",
        /// The provider ID does not match the machine of the bootstrap token.
        #[error("the request claims provider ID {0}, but the requester is machine {1}, which has a different provider ID")]
        #[cure("Correct the machine's bootstrap data. If the data is correct, treat the request as an attack.")]
        ProviderIdOfAnotherMachine(ProviderId, String) => "the provider ID does not match the machine",
        /// The machine is being deleted and has not joined. A machine that has joined can renew its certificate until
        /// it is deleted.
        #[error("machine {0} is being deleted")]
        #[cure("No action is needed: a new Machine gets a new bootstrap token.")]
        MachineDeleting(String) => "the machine is being deleted",

        /// The evidence was created for a different cluster.
        #[error("the evidence is for audience {0}")]
        #[cure("Put the CA certificate of this cluster into the bootstrap kubeconfig, or correct the setting \
                 `audience`.")]
        AudienceMismatch(Audience) => "the evidence was created for another cluster",
        /// The evidence and the request identify different machines.
        #[error("the evidence identifies {attested}, but the request claims {claimed}")]
        #[cure("Correct the setting `providerID` on the node. If the setting is correct, treat the request as an \
                attack.")]
        AnotherMachine {
            /// The provider ID in the evidence.
            attested: ProviderId,
            /// The provider ID in the request.
            claimed: ProviderId,
        } => "the evidence identifies another machine",
        /// The request already had the annotation `cluster.x-k8s.io/tpm-endorsement-key`, with a different value. Only
        /// the controller writes this annotation.
        #[error("the annotation tpm-endorsement-key of the request does not match endorsement key {0}")]
        #[cure("Identify the client from `spec.username` of the request. The plugin never sets this annotation.")]
        EndorsementKeyAnnotation(KeyDigest) => "the annotation tpm-endorsement-key does not match the machine's endorsement key",
        /// The machine cannot have the node name in the request.
        #[error("the request is for node {0}, but the machine's node name is {1}")]
        #[cure("Start the kubelet with the node name that the Machine's objects report. The log shows the name.")]
        NodeNameMismatch(NodeName, NodeNames) => "the node name does not match the machine",
        /// Another machine holds the node name, and its certificate might still be valid.
        #[error("{1} holds node name {0}")]
        #[cure("Rename one machine, or stop the kubelet on the other machine and run `identities reset`.")]
        NameTaken(NodeName, ProviderId) => "another machine holds the node name",
        /// The node identity that belongs to the certificate no longer exists.
        #[error("node {0} has no node identity")]
        #[cure("If node identities were lost, set `adoption: Recover`. Otherwise, the plugin uses the bootstrap \
                 token next: if the token has expired, run `tokens recreate`.")]
        RecordMissing(NodeName) => "the node identity of the certificate no longer exists",
        /// The certificate belongs to a different node identity or to an earlier generation.
        #[error("certificate {1} of node {0} belongs to another node identity or to an earlier generation")]
        #[cure("If the bootstrap token is valid, no action is needed: the plugin uses the token next. After you \
                 restore a backup, run `identities restored`.")]
        FormerCertificate(NodeName, CertificateUid) => "the certificate is no longer valid for the node",
        /// The machine has the provider ID of the machine that holds the name, but is a different instance or has a
        /// different TPM.
        #[error("{1} holds node name {0}, but was a different instance or had a different TPM when it joined")]
        #[cure("Investigate immediately. If the change was intended, run `identities reset`, and put a new bootstrap \
                 credential on the node.")]
        AnotherInstance(NodeName, ProviderId) => "the instance or the TPM of the machine has changed since the machine \
                                                  joined",
        /// The counters of the machine's TPM are lower than recorded: the TPM was copied, or an operator cleared it.
        #[error("the TPM counters of {1}, which holds node name {0}, are lower than recorded: the TPM was copied or cleared")]
        #[cure("Investigate immediately: run `identities revoke`, and find the copy. If the TPM was cleared on \
                 purpose, run `identities reset`.")]
        TpmRanBackwards(NodeName, ProviderId) => "the TPM counters are lower than recorded",
        /// The machine's TPM is registered for another machine, which holds a different node name.
        #[error("the TPM belongs to {1}, which holds node name {0}")]
        #[cure("Investigate immediately. Possible causes are swapped boards, and a virtual machine that was cloned \
                with its TPM. In the second case, find the clone.")]
        TpmOfAnotherMachine(NodeName, ProviderId) => "the TPM is already registered for another machine",
        /// The key belongs to the node identity of another machine. A copied disk or image contains the key.
        #[error("the key belongs to {1}, which holds node name {0}")]
        #[cure("If the plugin creates another key automatically, no action is needed. Otherwise, run `reset` on the \
                machine that was created from the copy.")]
        KeyOfAnotherMachine(NodeName, ProviderId) => "the key is already registered for another machine",
        /// An operator revoked the machine's certificates. The machine cannot get another certificate until an operator
        /// runs `identities reset --revoked`.
        #[error("generation {1} of node {0} is revoked")]
        #[cure("To allow the machine to join again, run `identities reset --revoked`.")]
        IdentityRevoked(NodeName, u64) => "the machine's certificates were revoked",
    }
    and {
        /// A reason that the evidence's provider defines.
        Evidence(EvidenceDenial),
    }
}

impl<D: EvidenceReason> From<D> for Denial {
    fn from(reason: D) -> Self {
        Self::Evidence(EvidenceDenial::new(reason))
    }
}
