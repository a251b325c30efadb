//! What every API object needs, without IO: schema, metadata, selectors, quantities, codecs, patches, apply.
