//! The vendor's certificates in the NV indices of a TPM, read without a password.
//!
//! An incorrect password counts toward the TPM's lockout, unless the index is exempt. Therefore, this module reads the
//! public area of an index first, and reads the content only if a failed read cannot count toward the lockout.

use tss_esapi::Error;
use tss_esapi::abstraction::nv;
use tss_esapi::attributes::NvIndexAttributes;
use tss_esapi::constants::{CapabilityType, NvIndexType};
use tss_esapi::handles::{NvIndexHandle, NvIndexTpmHandle, TpmHandle};
use tss_esapi::interface_types::resource_handles::NvAuth;
use tss_esapi::interface_types::session_handles::AuthSession;
use tss_esapi::structures::CapabilityData;

use super::{Device, at};
use crate::protocol::{DeviceError, EndorsementKey, FORMAT_ONE, FORMAT_ONE_ERROR, LAYER};

/// The indices of CA certificates ("TCG EK Credential Profile", 2.5, 2.2.1.5.2).
const CHAIN: std::ops::RangeInclusive<u32> = 0x01c0_0100..=0x01c0_01ff;

/// The maximum number of these indices that are read. Vendors put several certificates into one index.
const MAX_CHAIN_INDICES: u32 = 16;

/// The maximum content length of these indices. It exceeds the limit for evidence, because the content includes
/// padding.
const MAX_CHAIN_LEN: usize = 16 * 1024;

impl Device {
    /// Whether a handle is defined. Callers check this first, because reading an undefined handle is an error.
    pub(super) fn defined(&mut self, handle: u32) -> Result<bool, DeviceError> {
        let first = self.handles(handle, 1)?.into_iter().next();
        Ok(first == Some(handle))
    }

    /// Returns at most `count` defined handles, beginning with `first`.
    fn handles(&mut self, first: u32, count: u32) -> Result<Vec<u32>, DeviceError> {
        let (handles, _) = self
            .context
            .get_capability(CapabilityType::Handles, first, count)
            .map_err(at("TPM2_GetCapability"))?;
        let CapabilityData::Handles(handles) = handles else {
            return Ok(Vec::new());
        };
        Ok(handles.into_inner().into_iter().map(u32::from).collect())
    }

    /// Reads the content of the certificate index for a key of this type, if the index is readable without
    /// authorization.
    pub(super) fn certificate(
        &mut self,
        kind: EndorsementKey,
    ) -> Result<Option<Vec<u8>>, DeviceError> {
        self.content(kind.certificate_index())
    }

    /// Returns the template from which the TPM creates a key of this type: the template in the profile, or a
    /// TPM-specific template.
    pub(super) fn template(&mut self, kind: EndorsementKey) -> Result<Vec<u8>, DeviceError> {
        let Some([template, nonce]) = kind.template_indices() else {
            return Ok(kind.template());
        };
        let own = self.content(template)?;
        let nonce = self.content(nonce)?;
        Ok(kind.own_template(own.as_deref(), nonce.as_deref()))
    }

    /// Reads the content of an index, if it is defined and readable without authorization.
    fn content(&mut self, index: u32) -> Result<Option<Vec<u8>>, DeviceError> {
        if !self.defined(index)? {
            return Ok(None);
        }
        self.stored(index)
    }

    /// Reads the content of the CA certificate indices, concatenated: a certificate that is too large for one index
    /// continues in the next one.
    pub(super) fn chain(&mut self) -> Result<Vec<u8>, DeviceError> {
        let mut chain = Vec::new();
        for index in self.handles(*CHAIN.start(), MAX_CHAIN_INDICES)? {
            if !CHAIN.contains(&index) || chain.len() >= MAX_CHAIN_LEN {
                break;
            }
            chain.extend(self.stored(index)?.unwrap_or_default());
        }
        chain.truncate(MAX_CHAIN_LEN);
        Ok(chain)
    }

    /// Reads the content of a defined index, if it is readable without authorization.
    fn stored(&mut self, index: u32) -> Result<Option<Vec<u8>>, DeviceError> {
        let step = at("TPM2_NV_Read");
        let index = NvIndexTpmHandle::new(index).map_err(&step)?;
        let mut object = self
            .context
            .tr_from_tpm_public(TpmHandle::NvIndex(index))
            .map_err(&step)?;
        let read = self.read_open(object.into(), index);
        self.context.tr_close(&mut object).ok();
        read
    }

    fn read_open(
        &mut self,
        object: NvIndexHandle,
        index: NvIndexTpmHandle,
    ) -> Result<Option<Vec<u8>>, DeviceError> {
        let public = match self.context.nv_read_public(object) {
            Ok((public, _)) => public,
            // `tss-esapi` rejects unknown attributes. An index with unknown attributes is not a certificate index.
            Err(Error::WrapperError(_)) => return Ok(None),
            Err(error) => return Err(at("TPM2_NV_ReadPublic")(error)),
        };
        if !is_open(public.attributes()) || public.data_size() > MAX_CHAIN_LEN {
            return Ok(None);
        }
        let read = self
            .context
            .execute_with_session(Some(AuthSession::Password), |context| {
                nv::read_full(context, NvAuth::NvIndex(object), index)
            });
        match read.map_err(at("TPM2_NV_Read")) {
            Err(DeviceError::Code { code, .. }) if is_withheld(code) => Ok(None),
            read => read.map(Some),
        }
    }
}

/// Whether a read with the empty password of the index can succeed. If the index has a password, the read must not
/// count as a failed attempt (Part 2, `TPMA_NV`). Only ordinary indices are read, because other types have their own
/// failure counters, such as `TPM_NT_PIN_FAIL`.
fn is_open(attributes: NvIndexAttributes) -> bool {
    let is_ordinary = attributes.index_type().ok() == Some(NvIndexType::Ordinary);
    let is_readable = attributes.auth_read() && attributes.written() && !attributes.read_locked();
    is_ordinary && is_readable && attributes.no_da()
}

/// Whether the TPM withholds the content of an index (Part 3, `TPM2_NV_Read`; Part 2, `TPM_RC`). This is the case if
/// the index was never written, is locked, or requires a different authorization.
fn is_withheld(code: u32) -> bool {
    match code {
        // TPM_RC_AUTH_TYPE, _AUTH_MISSING, _POLICY, _AUTH_UNAVAILABLE, _NV_RANGE, _NV_SIZE,
        // _NV_LOCKED, _NV_AUTHORIZATION, _NV_UNINITIALIZED, _LOCKOUT
        0x124..=0x126 | 0x12f | 0x146..=0x14a | 0x921 => true,
        // TPM_RC_ATTRIBUTES, _AUTH_FAIL, _POLICY_FAIL, _BAD_AUTH, for any handle or session
        _ if code & LAYER == 0 && code & FORMAT_ONE != 0 => {
            matches!(code & FORMAT_ONE_ERROR, 0x82 | 0x8e | 0x9d | 0xa2)
        }
        _ => false,
    }
}
