"""The draft replica: sessions of many targets, pre-drafted in one batch."""
