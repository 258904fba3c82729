//! Each rule, hit and not hit.
