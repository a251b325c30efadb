//! A thin typed client of the API, over TCP and TLS or inside the process.
